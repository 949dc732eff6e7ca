# SPDX-License-Identifier: Apache-2.0
"""The two ways a checkpoint lies on disk, behind one small contract."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import numpy as np

from pax import atomic_file
from pax.checkpoints import (
  flax_format,
  host_arrays,
  manifest,
  paths,
  tensorstore_format,
)
from pax.checkpoints.types import (
  CheckpointError,
  CheckpointType,
  CorruptCheckpointError,
  Shapes,
)

Path = pathlib.Path
Named = Mapping[str, Any]

_TRAIN_INPUT = 'train_input'
_VERSION = 1.1
_BLOB = 'blob'


class Layout(Protocol):
  """How a state is taken from the devices, written, committed and read.

  `write` runs on every process and puts files below `staging`; `commit` runs
  on process 0 once all have written.
  """

  def snapshot(self, named: Named) -> Any:
    """Returns the leaves on the host, apart from the arrays they were in."""
    ...

  def write(self, staging: Path, snapshot: Any) -> dict[str, manifest.Entry]:
    """Writes what this process holds; returns its files for the manifest."""
    ...

  def commit(
    self, staging: Path, final: Path, snapshot: Any, step: int
  ) -> None:
    """Makes what all processes wrote the checkpoint `final`, at once."""
    ...

  def shapes(self, path: Path) -> Shapes:
    """Shape and dtype of every leaf that is stored."""
    ...

  def read(
    self, path: Path, abstract: Named, *, is_full: bool = True
  ) -> tuple[Named, Mapping[str, str]]:
    """The leaves, and the text of each process's input state.

    If the `whole` state is wanted, one of other leaves too is refused.
    """
    ...


class LeafLayout:
  """A directory with the state as one TensorStore per leaf."""

  def snapshot(self, named: Named) -> dict[str, host_arrays.HostArray]:
    return host_arrays.snapshot(named)

  def write(
    self, staging: Path, snapshot: dict[str, host_arrays.HostArray]
  ) -> dict[str, manifest.Entry]:
    return tensorstore_format.write(staging, snapshot)

  def commit(
    self, staging: Path, final: Path, snapshot: Any, step: int
  ) -> None:
    text = json.dumps(_metadata(step), indent=2)
    (staging / paths.METADATA_FILE).write_text(text)
    paths.commit(staging, final)

  def shapes(self, path: Path) -> Shapes:
    _check_metadata(path)
    return tensorstore_format.saved_shapes(path)

  def read(
    self, path: Path, abstract: Named, *, is_full: bool = True
  ) -> tuple[Named, Mapping[str, str]]:
    _check_metadata(path)
    leaves = None if is_full else tensorstore_format.folders(abstract)
    manifest.verify(path, jax.process_index(), jax.process_count(), leaves)
    saved = tensorstore_format.saved_shapes(path)
    check_shapes(path, saved, abstract, is_full=is_full)
    return tensorstore_format.read(path, abstract), read_inputs(path)


class BlobLayout:
  """A single file with everything."""

  def snapshot(self, named: Named) -> dict[str, np.ndarray]:
    return flax_format.snapshot(named)

  def write(self, staging: Path, snapshot: Any) -> dict[str, manifest.Entry]:
    return {}

  def commit(
    self, staging: Path, final: Path, snapshot: Any, step: int
  ) -> None:
    blob = staging / _BLOB
    flax_format.write(blob, snapshot, _metadata(step), read_inputs(staging))
    paths.commit(blob, final)
    paths.discard(staging)

  def shapes(self, path: Path) -> Shapes:
    return _shapes(flax_format.read(path)[0])

  def read(
    self, path: Path, abstract: Named, *, is_full: bool = True
  ) -> tuple[Named, Mapping[str, str]]:
    state, _, train_input = flax_format.read(path)
    check_shapes(path, _shapes(state), abstract, is_full=is_full)
    return flax_format.place(state, abstract), train_input


def layout_of(kind: CheckpointType) -> Layout:
  """The layout that checkpoints of this kind are written in."""
  return BlobLayout() if kind is CheckpointType.FLAX else LeafLayout()


def layout_at(path: Path) -> Layout:
  """The layout that the checkpoint at `path` was written in."""
  return LeafLayout() if path.is_dir() else BlobLayout()


def write_input(
  staging: Path, text: str, index: int, count: int
) -> dict[str, manifest.Entry]:
  """Writes the state of one process's input."""
  folder = staging / _TRAIN_INPUT
  folder.mkdir(parents=True, exist_ok=True)
  name = manifest.process_name(index, count)
  atomic_file.write_text(folder / name, text)
  return {f'{_TRAIN_INPUT}/{name}': manifest.entry(text.encode())}


def read_inputs(path: Path) -> dict[str, str]:
  """The texts that `write_input` wrote, by process."""
  folder = path / _TRAIN_INPUT
  files = folder.iterdir() if folder.exists() else ()
  return {file.name: file.read_text() for file in files}


def check_shapes(
  path: Path,
  saved: Shapes,
  abstract: Named,
  *,
  is_full: bool = True,
) -> None:
  """Raises CheckpointError when `path` holds another model's state.

  Further leaves are another model's only if the `whole` state is wanted.
  """
  wanted = {
    name: (tuple(leaf.shape), np.dtype(leaf.dtype).name)
    for name, leaf in abstract.items()
  }
  faults = [f'{name} is not in it' for name in wanted.keys() - saved.keys()]
  faults += [
    f'{name} is {_shown(saved[name])}, wanted {_shown(wanted[name])}'
    for name in sorted(wanted.keys() & saved.keys())
    if saved[name] != wanted[name]
  ]
  faults += [
    f'{name} is not in the model'
    for name in (saved.keys() - wanted.keys() if is_full else ())
  ]
  if faults:
    more = f' (and {len(faults) - 1} more differences)' if faults[1:] else ''
    raise CheckpointError(
      f'{path} was saved by another model: {faults[0]}{more}. Use a new'
      ' --job_log_dir, or the experiment and the --set values of that run'
    )


def _shapes(state: Mapping[str, np.ndarray]) -> Shapes:
  return {name: (x.shape, x.dtype.name) for name, x in state.items()}


def _shown(shape_and_dtype: tuple[tuple[int, ...], str]) -> str:
  shape, dtype = shape_and_dtype
  return f'{dtype}{list(shape)}'


def _metadata(step: int) -> dict[str, Any]:
  return {
    'version': _VERSION,
    'step': step,
    'num_processes': jax.process_count(),
    'saved_at': time.time(),
  }


def _check_metadata(path: Path) -> None:
  file = path / paths.METADATA_FILE
  try:
    metadata = json.loads(file.read_text())
    version = metadata['version']
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise CorruptCheckpointError(
      f'{file} cannot be read ({type(e).__name__}: {e})'
    ) from e
  if version != _VERSION:
    raise CheckpointError(
      f'{path} has format version {version}; this reads {_VERSION}'
    )
  # Checkpoints that upstream Pax wrote do not tell, and have no manifest.
  for index in range(count := metadata.get('num_processes', 0)):
    name = f'{manifest.process_name(index, count)}.json'
    if not (path / 'manifest' / name).exists():
      raise CorruptCheckpointError(f'{path / "manifest" / name} is missing')
