# SPDX-License-Identifier: Apache-2.0
"""Opened checkpoints: leaves are read when they are needed, verified once."""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

import jax
import numpy as np

from pax.checkpoints import (
  frozen_checkpoint,
  metadata_copy,
  paths,
  read_deadline,
)
from pax.checkpoints.formats import (
  format_readers,
  paxml_flax_format,
  verification,
)
from pax.checkpoints.types import (
  CheckpointError,
  CorruptCheckpointError,
  InputState,
  LeafDict,
  Shapes,
)
from pax.files import storage
from praxis import base_input
from praxis.base_layer import QUANTIZED_SCALE_NAME_POSTFIX

Path = storage.Path

_UNPADDED_SHAPE = '.unpadded_shape'
# Errors of the process, its rights or the network, which say nothing about the
# files.
_STORAGE_ERRORS = frozenset(
  (
    errno.EACCES,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOTCONN,
    errno.EPERM,
    errno.ESTALE,
    errno.ETIMEDOUT,
  )
)


class LeafSource(Protocol):
  """Leaves by name, read from files."""

  @property
  def path(self) -> Path:
    """The files, for messages."""
    ...

  @property
  def shapes(self) -> Shapes:
    """Shape and dtype of every leaf."""
    ...

  def read(
    self, abstract: Mapping[str, jax.ShapeDtypeStruct]
  ) -> Mapping[str, jax.Array]:
    """Returns leaves, placed by the shardings of `abstract`."""
    ...


class CheckpointReader:
  """An opened checkpoint, in any format of Pax or paxml.

  Opening it reads and verifies everything but the data of leaves. Reading a
  leaf verifies the files that contain it, unless an earlier `read` did. The
  processes of a job each verify a part of the data.
  """

  def __init__(self, path: Path, readers: Sequence[int] | None = None):
    """Opens a checkpoint.

    Args:
      path: The checkpoint.
      readers: The processes that read leaves; None is all processes of the job.

    Raises:
      CheckpointError: Another version of Pax saved it.
      CorruptCheckpointError: Files differ from what was written; the message
        has the command that moves the checkpoint aside.
    """
    self.path = path
    readers = readers or range(jax.process_count())
    self._copy: metadata_copy.MetadataCopy | None = None
    with self._reading():
      sizes = storage.file_sizes(path)
      if isinstance(path, storage.BucketPath) and sizes:
        self._copy = metadata_copy.MetadataCopy(path, sizes)
    self._folder = self._copy.path if self._copy else path
    with self._reading():
      self._reader = format_readers.open_format(
        path, self._folder, sizes, readers
      )
    self._frozen = self._open_frozen(readers)

  def _open_frozen(self, readers: Sequence[int]) -> CheckpointReader | None:
    """Opens the checkpoint with the frozen leaves, if there is one."""
    name = self._reader.frozen_checkpoint
    if name is None:
      return None
    with self._reading():
      path = frozen_checkpoint.find(self.path, name)
    return CheckpointReader(path, readers)

  @functools.cached_property
  def shapes(self) -> Shapes:
    """Shape and dtype name of every leaf."""
    own = self._reader.shapes
    return {**self._frozen.shapes, **own} if self._frozen else own

  @property
  def frozen_checkpoint(self) -> str | None:
    """Name of the checkpoint that has its `frozen_leaves`; None if none."""
    return self._frozen.path.name if self._frozen else None

  @functools.cached_property
  def frozen_leaves(self) -> Set[str]:
    """Names of the leaves that another checkpoint has."""
    return self.shapes.keys() - self._reader.shapes.keys()

  def verify(self) -> None:
    """Checks the data of all leaves.

    Raises:
      CorruptCheckpointError: Files differ from what was written.
    """
    with self._reading():
      self._reader.verify()
    if self._frozen:
      self._frozen.verify()

  def read(self, abstract: LeafDict, *, is_full: bool = False) -> LeafDict:
    """Returns leaves, placed by the shardings of `abstract`.

    Args:
      abstract: Shapes, dtypes and shardings of the leaves.
      is_full: Whether further leaves in the checkpoint are an error.

    Raises:
      CheckpointError: A leaf is missing, or has another shape or dtype.
      CorruptCheckpointError: Files differ from what was written.
    """
    _check_shapes(self.path, self.shapes, abstract, is_full=is_full)
    if self._frozen is None:
      with self._reading():
        return self._reader.read(abstract)
    frozen = {k: abstract[k] for k in abstract.keys() & self.frozen_leaves}
    own = {k: v for k, v in abstract.items() if k not in frozen}
    with self._reading():
      leaves = self._reader.read(own)
    return {**leaves, **self._frozen.read(frozen)}

  @property
  def has_opt_states(self) -> bool:
    """Whether it has more than variables and the step."""
    return self.is_paxml_flax or any(map(_is_opt_state, self.shapes))

  @property
  def is_paxml_flax(self) -> bool:
    """Whether paxml wrote it for Flax: names of leaves may be unknown."""
    return paxml_flax_format.find_file(self._folder) is not None

  @property
  def is_flax(self) -> bool:
    """Whether it is a single file, whose leaves are in the order of a tree."""
    is_file = isinstance(self._reader, format_readers.FileReader)
    return is_file and self._frozen is None

  def unpadded_variable_shapes(self) -> Shapes:
    """Returns shapes and dtypes of the variables without padding, if recorded.

    Only paxml pads arrays.

    Raises:
      CorruptCheckpointError: Files differ from what was written.
    """
    own = self._own_unpadded_shapes()
    return (
      {**self._frozen.unpadded_variable_shapes(), **own}
      if self._frozen
      else own
    )

  def _own_unpadded_shapes(self) -> Shapes:
    file = self._folder / verification.METADATA_IN_FOLDER
    if not file.exists():
      return {} if self.is_paxml_flax else self._reader.shapes
    with self._reading():
      metadata = verification.read_metadata(file)
    values = _flatten_json(metadata.get('train_state_metadata') or {})
    names = [
      key.removesuffix(_UNPADDED_SHAPE)
      for key in values
      if key.endswith(_UNPADDED_SHAPE)
    ]
    return {
      name: (tuple(values[f'{name}{_UNPADDED_SHAPE}']), values[f'{name}.dtype'])
      for name in names
    }

  def input_states(self) -> Mapping[str, InputState]:
    """Returns the state of the training input by process.

    Raises:
      CorruptCheckpointError: Files differ from what was written.
    """
    with self._reading():
      return {
        name: _parse_input(self.path, name, text)
        for name, text in self._reader.input_texts().items()
      }

  @contextlib.contextmanager
  def _reading(self) -> Iterator[None]:
    """Limits the time without progress, and completes the messages of errors.

    They have the remedy, and name files by the path of the checkpoint.

    Raises:
      CheckpointError: As the block raises it, or the storage cannot be read.
      CorruptCheckpointError: Files differ from what was written.
    """
    with contextlib.ExitStack() as stack:
      stack.enter_context(read_deadline.limiting(self.path))
      stack.enter_context(_advise(self.path))
      if self._copy:
        stack.enter_context(self._copy.in_messages())
      stack.enter_context(_storage_failures(self.path))
      yield


def _check_shapes(
  path: Path, saved: Shapes, abstract: LeafDict, *, is_full: bool
) -> None:
  """Checks that a checkpoint has the leaves of this model.

  Args:
    path: The checkpoint.
    saved: Shapes and dtypes of its leaves.
    abstract: Shapes and dtypes of the leaves to read.
    is_full: Whether further leaves in the checkpoint are an error.

  Raises:
    CheckpointError: A leaf is missing, or has another shape or dtype.
  """
  expected = {
    name: (tuple(leaf.shape), np.dtype(leaf.dtype).name)
    for name, leaf in abstract.items()
  }
  missing = sorted(expected.keys() - saved.keys())
  faults = [f'{name} is not in it' for name in missing]
  faults += [
    f'{name} is {_format(saved[name])}, expected {_format(expected[name])}'
    for name in sorted(expected.keys() & saved.keys())
    if saved[name] != expected[name]
  ]
  faults += [
    f'{name} is not in the model'
    for name in (sorted(saved.keys() - expected.keys()) if is_full else ())
  ]
  if not faults:
    return
  is_optimizer_missing = missing and all(map(_is_opt_state, missing))
  if is_optimizer_missing and not any(map(_is_opt_state, saved)):
    raise CheckpointError(
      f'{path} has weights without states of an optimizer, with which a job'
      f' cannot continue; start from them by --init_from={path.parent} with a'
      ' new --job_log_dir'
    )
  more = f' (and {len(faults) - 1} more differences)' if faults[1:] else ''
  remedy = (
    'Use a new --job_log_dir, or the experiment and the --set values of that'
    ' run'
  )
  if any(name.endswith(QUANTIZED_SCALE_NAME_POSTFIX) for name in missing):
    remedy = (
      'Convert it to the quantized weights of this model by --mode=quantize'
    )
  raise CheckpointError(
    f'{path} was saved by another model: {faults[0]}{more}. {remedy}'
  )


def _is_opt_state(leaf: str) -> bool:
  return leaf.startswith('opt_states')


def _flatten_json(tree: Any) -> dict[str, Any]:
  """Returns the values of nested dicts and lists by leaf name.

  A list of numbers, such as a shape, is a value.
  """

  def is_value(node: Any) -> bool:
    if isinstance(node, list):
      return not any(isinstance(child, dict | list) for child in node)
    return not isinstance(node, dict)

  leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_value)[0]
  return {paths.leaf_name(path): leaf for path, leaf in leaves}


def _format(shape_and_dtype: tuple[tuple[int, ...], str]) -> str:
  shape, dtype = shape_and_dtype
  return f'{dtype}{list(shape)}'


@contextlib.contextmanager
def _advise(path: Path) -> Iterator[None]:
  """Adds the remedy to errors of a damaged checkpoint."""
  try:
    yield
  except (CorruptCheckpointError, OSError) as e:
    raise CorruptCheckpointError(
      f'checkpoint {path} is corrupt: {e}. Nothing was changed. {_remedy(path)}'
    ) from e


def _remedy(path: Path) -> str:
  """Returns the sentence with the way to continue without a checkpoint."""
  if frozen_checkpoint.is_name(path.name):
    return (
      'The checkpoints that name it have only the other leaves: restore it from'
      ' a copy, continue from one that does not name it by'
      ' --on_corrupt_checkpoint=fallback, or run again with another'
      ' --job_log_dir'
    )
  others = [s for s, other in _siblings(path).items() if other != path]
  action = (
    f'continue from step {max(others)}' if others else 'start from step 0'
  )
  command = paths.move_aside_command(path)
  return f'To {action}, move it aside and run again: {command}'


@contextlib.contextmanager
def _storage_failures(path: Path) -> Iterator[None]:
  """Distinguishes failures of the storage from damage of the checkpoint.

  Args:
    path: The checkpoint.

  Raises:
    CheckpointError: The storage cannot be read.
    CorruptCheckpointError: A file is missing or differs.
  """
  try:
    yield
  except FileNotFoundError as e:
    raise CorruptCheckpointError(f'{e.filename} is missing') from e
  except (CorruptCheckpointError, OSError) as e:
    cause = e if isinstance(e, OSError) else e.__cause__
    if not _is_storage_failure(cause, path):
      raise
    raise CheckpointError(
      f'{path} cannot be read: {e}; nothing was changed'
    ) from e


def _is_storage_failure(error: BaseException | None, path: Path) -> bool:
  if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
    return False
  is_bucket = isinstance(path, storage.BucketPath)
  return is_bucket or error.errno in _STORAGE_ERRORS


def _siblings(path: Path) -> Mapping[int, Path]:
  try:
    return paths.steps(path.parent)
  except OSError:
    return {}


def _parse_input(path: Path, name: str, text: str) -> InputState:
  try:
    return base_input.state_from_json(text)
  except ValueError as e:
    raise CorruptCheckpointError(
      f'the state of the training input of {name} in {path} is not JSON ({e})'
    ) from e
