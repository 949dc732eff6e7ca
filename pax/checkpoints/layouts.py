# SPDX-License-Identifier: Apache-2.0
"""The on-disk formats of a checkpoint behind one interface.

Three are written and read; those of paxml are read only.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import (
  TYPE_CHECKING,
  Any,
  Generic,
  Protocol,
  TypeVar,
)

import jax
import numpy as np

from pax import atomic_file
from pax.checkpoints import (
  flax_format,
  host_arrays,
  manifest,
  paths,
  paxml_flax_format,
  tensorstore_format,
  verification,
)
from pax.checkpoints.types import (
  CheckpointError,
  CheckpointType,
  CorruptCheckpointError,
  InputState,
  LeafDict,
  Shapes,
  State,
)
from praxis import base_input

if TYPE_CHECKING:
  from pax.checkpoints import orbax_format

Path = pathlib.Path
# Host copy of a state, in the form that a layout writes.
SnapshotT = TypeVar('SnapshotT')

_TRAIN_INPUT = 'train_input'
_STATE_FILE = 'blob'
_UNPADDED_SHAPE = '.unpadded_shape'


class ReadableLayout(Protocol):
  """Reads the leaves and the input states of a checkpoint."""

  def shapes(self, path: Path) -> Shapes:
    """Returns shape and dtype of every stored leaf.

    Raises:
      CorruptCheckpointError: Files differ from what was written.
    """
    ...

  def read(
    self, path: Path, abstract: LeafDict, *, is_full: bool = True
  ) -> tuple[LeafDict, Mapping[str, str]]:
    """Returns the leaves, and the input state of each process as JSON.

    Args:
      path: The checkpoint.
      abstract: Shapes, dtypes and shardings of the leaves.
      is_full: Whether further leaves in the checkpoint are an error.

    Raises:
      CheckpointError: A leaf is missing, or has another shape or dtype.
      CorruptCheckpointError: Files differ from what was written.
    """
    ...


class Layout(ReadableLayout, Protocol, Generic[SnapshotT]):
  """Copies a state to the host, writes, commits and reads it.

  `write` runs on every process and writes below `staging`; `finish` and
  `commit` run on process 0 when all processes have written.
  """

  def import_libraries(self) -> None:
    """Imports what the first save needs."""
    ...

  def snapshot(self, state: State) -> SnapshotT:
    """Returns a host copy of the state, whose arrays may then be donated."""
    ...

  def write(
    self, staging: Path, snapshot: SnapshotT, step: int
  ) -> dict[str, manifest.Entry]:
    """Writes the data of this process; returns the manifest entries.

    Args:
      staging: Directory with the files of all processes.
      snapshot: The host copy.
      step: The training step.
    """
    ...

  def finish(
    self, staging: Path, snapshot: SnapshotT, step: int
  ) -> dict[str, manifest.Entry]:
    """Writes what needs the data of all; returns the manifest entries.

    Args:
      staging: Directory with the files of all processes.
      snapshot: The host copy of process 0.
      step: The training step.
    """
    ...

  def commit(
    self, staging: Path, final: Path, snapshot: SnapshotT, step: int
  ) -> None:
    """Makes the staged files the checkpoint `final`, atomically and durably.

    Args:
      staging: Directory with the files of all processes.
      final: Path of the checkpoint.
      snapshot: The host copy of process 0.
      step: The training step.
    """
    ...

  def release(self, snapshot: SnapshotT) -> None:
    """Frees a host copy, whether it was written or not."""
    ...


class OrbaxLayout:
  """A directory with one OCDBT database, which Orbax writes."""

  def import_libraries(self) -> None:
    from pax.checkpoints import orbax_format

    del orbax_format

  def snapshot(self, state: State) -> orbax_format.Snapshot:
    from pax.checkpoints import orbax_format

    return orbax_format.Snapshot(state)

  def write(
    self, staging: Path, snapshot: orbax_format.Snapshot, step: int
  ) -> dict[str, manifest.Entry]:
    return snapshot.write(staging)

  def finish(
    self, staging: Path, snapshot: orbax_format.Snapshot, step: int
  ) -> dict[str, manifest.Entry]:
    metadata = {
      **verification.create_metadata(step),
      'version': verification.OCDBT_VERSION,
    }
    return snapshot.finish(staging, metadata)

  def commit(
    self,
    staging: Path,
    final: Path,
    snapshot: orbax_format.Snapshot,
    step: int,
  ) -> None:
    paths.commit(staging, final)

  def release(self, snapshot: orbax_format.Snapshot) -> None:
    snapshot.release()

  def shapes(self, path: Path) -> Shapes:
    verification.verify_database(path, with_data=False)
    return verification.recorded_shapes(path)

  def read(
    self, path: Path, abstract: LeafDict, *, is_full: bool = True
  ) -> tuple[LeafDict, Mapping[str, str]]:
    verification.verify_database(path, with_data=is_full or bool(abstract))
    check_shapes(
      path, verification.recorded_shapes(path), abstract, is_full=is_full
    )
    try:
      return tensorstore_format.read(path, abstract), read_inputs(path)
    except CorruptCheckpointError:
      # Another process has compared the checksum of the damaged file.
      verification.verify_database(path, with_data=True, is_divided=False)
      raise


class LeafLayout:
  """A directory with one TensorStore per leaf."""

  def import_libraries(self) -> None:
    import tensorstore

    del tensorstore

  def snapshot(self, state: State) -> dict[str, host_arrays.HostArray]:
    return host_arrays.snapshot(paths.flatten(state))

  def write(
    self, staging: Path, snapshot: dict[str, host_arrays.HostArray], step: int
  ) -> dict[str, manifest.Entry]:
    return tensorstore_format.write(staging, snapshot)

  def finish(
    self, staging: Path, snapshot: dict[str, host_arrays.HostArray], step: int
  ) -> dict[str, manifest.Entry]:
    data = json.dumps(verification.create_metadata(step), indent=2).encode()
    (staging / paths.METADATA_FILE).write_bytes(data)
    return {paths.METADATA_FILE: manifest.entry(data)}

  def release(self, snapshot: dict[str, host_arrays.HostArray]) -> None:
    pass

  def commit(
    self,
    staging: Path,
    final: Path,
    snapshot: dict[str, host_arrays.HostArray],
    step: int,
  ) -> None:
    paths.commit(staging, final)

  def shapes(self, path: Path) -> Shapes:
    verification.verify_metadata(path)
    return tensorstore_format.saved_shapes(path)

  def read(
    self, path: Path, abstract: LeafDict, *, is_full: bool = True
  ) -> tuple[LeafDict, Mapping[str, str]]:
    entries = verification.verify_metadata(path)
    verification.verify_leaves(path, entries, None if is_full else abstract)
    saved = tensorstore_format.saved_shapes(path)
    check_shapes(path, saved, abstract, is_full=is_full)
    leaves = tensorstore_format.read(path, abstract)
    # The states of inputs that paxml wrote are of other formats than JSON.
    is_paxml = (path / paths.METADATA_FILE).is_dir()
    return leaves, {} if is_paxml else read_inputs(path)


class FileLayout:
  """A single msgpack file, written by process 0."""

  def import_libraries(self) -> None:
    import flax.serialization

    del flax

  def snapshot(self, state: State) -> dict[str, np.ndarray]:
    return flax_format.snapshot(paths.flatten(state))

  def write(
    self, staging: Path, snapshot: dict[str, np.ndarray], step: int
  ) -> dict[str, manifest.Entry]:
    return {}

  def finish(
    self, staging: Path, snapshot: dict[str, np.ndarray], step: int
  ) -> dict[str, manifest.Entry]:
    return {}

  def release(self, snapshot: dict[str, np.ndarray]) -> None:
    pass

  def commit(
    self,
    staging: Path,
    final: Path,
    snapshot: dict[str, np.ndarray],
    step: int,
  ) -> None:
    file = staging / _STATE_FILE
    flax_format.write(
      file, snapshot, verification.create_metadata(step), read_inputs(staging)
    )
    paths.commit(file, final)
    paths.discard(staging)

  def shapes(self, path: Path) -> Shapes:
    return _shapes(flax_format.read(path)[0])

  def read(
    self, path: Path, abstract: LeafDict, *, is_full: bool = True
  ) -> tuple[LeafDict, Mapping[str, str]]:
    state, _, train_input = flax_format.read(path)
    check_shapes(path, _shapes(state), abstract, is_full=is_full)
    return flax_format.place(state, abstract), train_input


class PaxmlFlaxLayout:
  """A train state that paxml wrote for Flax: a file, or a folder with it."""

  def shapes(self, path: Path) -> Shapes:
    return _shapes(paxml_flax_format.read(_paxml_flax_file(path)))

  def read(
    self, path: Path, abstract: LeafDict, *, is_full: bool = True
  ) -> tuple[LeafDict, Mapping[str, str]]:
    state = paxml_flax_format.read(_paxml_flax_file(path))
    check_shapes(path, _shapes(state), abstract, is_full=is_full)
    return flax_format.place(state, abstract), {}


def layout_of(kind: CheckpointType, *, use_ocdbt: bool = True) -> Layout[Any]:
  """Returns the layout of checkpoints of this type.

  Args:
    kind: The type.
    use_ocdbt: See `CheckpointOptions.use_ocdbt`.
  """
  if kind is CheckpointType.FLAX:
    return FileLayout()
  return OrbaxLayout() if use_ocdbt else LeafLayout()


def saved_shapes(path: Path) -> Shapes:
  """Returns shape and dtype of every leaf of the checkpoint at `path`.

  Raises:
    CorruptCheckpointError: Files differ from what was written.
  """
  with _advise(path):
    return _layout_at(path).shapes(path)


def read(
  path: Path, abstract: LeafDict, *, is_full: bool = True
) -> tuple[LeafDict, Mapping[str, InputState]]:
  """Returns the leaves and the input state of each process.

  Args:
    path: The checkpoint.
    abstract: Shapes, dtypes and shardings of the leaves.
    is_full: Whether further leaves in the checkpoint are an error.

  Raises:
    CheckpointError: A leaf is missing, or has another shape or dtype.
    CorruptCheckpointError: Files differ from what was written; the message has
      the command that moves the checkpoint aside.
  """
  with _advise(path):
    leaves, inputs = _layout_at(path).read(path, abstract, is_full=is_full)
    return leaves, {
      name: _parse_input(path, name, text) for name, text in inputs.items()
    }


def is_paxml_flax(path: Path) -> bool:
  """Returns whether paxml wrote the checkpoint for Flax, in order of leaves."""
  return _paxml_flax_file(path) is not None


def unpadded_variable_shapes(path: Path) -> Shapes:
  """Returns shapes and dtypes of the variables without padding, if recorded.

  Only paxml pads arrays.

  Raises:
    CorruptCheckpointError: Files differ from what was written.
  """
  file = path / paths.METADATA_FILE / paths.METADATA_FILE
  if not file.exists():
    return {} if is_paxml_flax(path) else saved_shapes(path)
  tree = verification.read_metadata(file).get('train_state_metadata') or {}
  values = _flatten_json(tree)
  names = [
    key.removesuffix(_UNPADDED_SHAPE)
    for key in values
    if key.endswith(_UNPADDED_SHAPE)
  ]
  return {
    name: (tuple(values[f'{name}{_UNPADDED_SHAPE}']), values[f'{name}.dtype'])
    for name in names
  }


def write_input(
  staging: Path, text: str, index: int, count: int
) -> dict[str, manifest.Entry]:
  """Writes the input state of one process; returns its manifest entry.

  Args:
    staging: Directory of the checkpoint.
    text: The state as JSON.
    index: Index of the process.
    count: Number of processes.
  """
  name = manifest.process_name(index, count)
  # `manifest.write` flushes it.
  file = paths.side_folder(staging) / _TRAIN_INPUT / name
  atomic_file.make_folder(file.parent)
  atomic_file.write_text(file, text, is_durable=False)
  return {str(file.relative_to(staging)): manifest.entry(text.encode())}


def read_inputs(path: Path) -> dict[str, str]:
  """Returns the input states by process name, as JSON."""
  folder = paths.side_folder(path) / _TRAIN_INPUT
  files = folder.glob('process_*') if folder.exists() else ()
  return {
    # A checkpoint without a manifest may contain any bytes.
    file.name: file.read_text(errors='backslashreplace')
    for file in files
  }


def check_shapes(
  path: Path,
  saved: Shapes,
  abstract: LeafDict,
  *,
  is_full: bool = True,
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
  faults = [f'{name} is not in it' for name in expected.keys() - saved.keys()]
  faults += [
    f'{name} is {_format(saved[name])}, expected {_format(expected[name])}'
    for name in sorted(expected.keys() & saved.keys())
    if saved[name] != expected[name]
  ]
  faults += [
    f'{name} is not in the model'
    for name in (saved.keys() - expected.keys() if is_full else ())
  ]
  if faults:
    more = f' (and {len(faults) - 1} more differences)' if faults[1:] else ''
    raise CheckpointError(
      f'{path} was saved by another model: {faults[0]}{more}. Use a new'
      ' --job_log_dir, or the experiment and the --set values of that run'
    )


def _shapes(state: Mapping[str, np.ndarray]) -> Shapes:
  return {name: (x.shape, x.dtype.name) for name, x in state.items()}


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


def _layout_at(path: Path) -> ReadableLayout:
  if _paxml_flax_file(path) is not None:
    return PaxmlFlaxLayout()
  if not path.is_dir():
    return FileLayout()
  # Of paxml's databases there is no manifest, and LeafLayout reads them.
  entries = manifest.read(path) or ()
  return (
    OrbaxLayout()
    if verification.METADATA_IN_FOLDER in entries
    else LeafLayout()
  )


def _paxml_flax_file(path: Path) -> Path | None:
  """Returns the file with the train state that paxml wrote for Flax, if any."""
  name = paxml_flax_format.FILE
  files = [path / paths.STATE_FOLDER / name, path / name, path]
  file = next((file for file in files if file.is_file()), None)
  return file if file and paxml_flax_format.is_state_file(file) else None


@contextlib.contextmanager
def _advise(path: Path) -> Iterator[None]:
  """Adds the remedy to errors of a damaged checkpoint."""
  try:
    yield
  except (CorruptCheckpointError, OSError) as e:
    others = [s for s, other in _siblings(path).items() if other != path]
    action = (
      f'continue from step {max(others)}' if others else 'start from step 0'
    )
    raise CorruptCheckpointError(
      f'checkpoint {path} is corrupt: {e}. Nothing was changed. To {action},'
      f' move it aside and run again: {paths.move_aside_command(path)}'
    ) from e


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
