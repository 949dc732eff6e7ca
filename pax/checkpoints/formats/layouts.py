# SPDX-License-Identifier: Apache-2.0
"""The on-disk formats that are written, behind one interface.

`checkpoint_reader` reads them, and those of paxml.
"""

from __future__ import annotations

import json
import pathlib
from typing import (
  TYPE_CHECKING,
  Any,
  Generic,
  Protocol,
  TypeVar,
)

import jax
import numpy as np

from pax.checkpoints import paths
from pax.checkpoints.formats import (
  flax_format,
  host_arrays,
  manifest,
  tensorstore_format,
  verification,
)
from pax.checkpoints.types import CheckpointType, State
from pax.files import atomic_file, storage

if TYPE_CHECKING:
  from pax.checkpoints.formats import orbax_format

Path = pathlib.Path
# Host copy of a state, in the form that a layout writes.
SnapshotT = TypeVar('SnapshotT')

_TRAIN_INPUT = 'train_input'
_STATE_FILE = 'blob'


class Layout(Protocol, Generic[SnapshotT]):
  """Copies a state to the host, writes it and commits the files.

  `write` runs on every process and writes below `staging`; `finish` and
  `commit` run on process 0 when all processes have written.
  """

  # Whether a checkpoint is a folder, not one file.
  is_folder: bool

  def import_libraries(self) -> None:
    """Imports what the first save needs."""
    ...

  def snapshot(self, state: State) -> SnapshotT:
    """Returns a host copy of the state, whose arrays may then be donated.

    Raises:
      ValueError: The state has PRNG keys.
    """
    ...

  def write(
    self, staging: Path, snapshot: SnapshotT
  ) -> dict[str, manifest.Entry]:
    """Writes the data of this process; returns the manifest entries.

    Args:
      staging: Directory with the files of all processes.
      snapshot: The host copy.
    """
    ...

  def finish(
    self,
    staging: Path,
    snapshot: SnapshotT,
    metadata: verification.Metadata,
    others: storage.Path | None = None,
  ) -> dict[str, manifest.Entry]:
    """Writes what needs the data of all; returns the manifest entries.

    Args:
      staging: Directory with the files of all processes, or of process 0.
      snapshot: The host copy of process 0.
      metadata: Those of the checkpoint.
      others: Directory with the files of the other processes, if `staging` has
        only those of process 0.
    """
    ...

  def commit(
    self,
    staging: Path,
    final: Path,
    snapshot: SnapshotT,
    metadata: verification.Metadata,
  ) -> None:
    """Makes the staged files the checkpoint `final`, atomically and durably.

    Args:
      staging: Directory with the files of all processes.
      final: Path of the checkpoint.
      snapshot: The host copy of process 0.
      metadata: Those of the checkpoint.
    """
    ...


class OrbaxLayout:
  """A directory with one OCDBT database, in the format of Orbax."""

  is_folder = True

  def import_libraries(self) -> None:
    from pax.checkpoints.formats import orbax_format

    del orbax_format

  def snapshot(self, state: State) -> orbax_format.Snapshot:
    from pax.checkpoints.formats import orbax_format

    _check_dtypes(state)
    return orbax_format.Snapshot(state)

  def write(
    self, staging: Path, snapshot: orbax_format.Snapshot
  ) -> dict[str, manifest.Entry]:
    return snapshot.write(staging)

  def finish(
    self,
    staging: Path,
    snapshot: orbax_format.Snapshot,
    metadata: verification.Metadata,
    others: storage.Path | None = None,
  ) -> dict[str, manifest.Entry]:
    contents = {**metadata, 'version': verification.OCDBT_VERSION}
    return snapshot.finish(staging, contents, others)

  def commit(
    self,
    staging: Path,
    final: Path,
    snapshot: orbax_format.Snapshot,
    metadata: verification.Metadata,
  ) -> None:
    paths.commit(staging, final)


class LeafLayout:
  """A directory with one TensorStore per leaf."""

  is_folder = True

  def import_libraries(self) -> None:
    import tensorstore

    del tensorstore

  def snapshot(self, state: State) -> dict[str, host_arrays.HostArray]:
    _check_dtypes(state)
    return host_arrays.snapshot(paths.flatten(state))

  def write(
    self, staging: Path, snapshot: dict[str, host_arrays.HostArray]
  ) -> dict[str, manifest.Entry]:
    return tensorstore_format.write(staging, snapshot)

  def finish(
    self,
    staging: Path,
    snapshot: dict[str, host_arrays.HostArray],
    metadata: verification.Metadata,
    others: storage.Path | None = None,
  ) -> dict[str, manifest.Entry]:
    data = json.dumps(metadata, indent=2).encode()
    (staging / paths.METADATA_FILE).write_bytes(data)
    return {paths.METADATA_FILE: manifest.entry(data)}

  def commit(
    self,
    staging: Path,
    final: Path,
    snapshot: dict[str, host_arrays.HostArray],
    metadata: verification.Metadata,
  ) -> None:
    paths.commit(staging, final)


class FileLayout:
  """A single msgpack file, written by process 0."""

  is_folder = False

  def import_libraries(self) -> None:
    import flax.serialization

    del flax

  def snapshot(self, state: State) -> dict[str, np.ndarray]:
    _check_dtypes(state)
    return flax_format.snapshot(paths.flatten(state))

  def write(
    self, staging: Path, snapshot: dict[str, np.ndarray]
  ) -> dict[str, manifest.Entry]:
    return {}

  def finish(
    self,
    staging: Path,
    snapshot: dict[str, np.ndarray],
    metadata: verification.Metadata,
    others: storage.Path | None = None,
  ) -> dict[str, manifest.Entry]:
    for name, text in read_inputs(others).items() if others else ():
      file = paths.side_folder(staging) / _TRAIN_INPUT / name
      file.parent.mkdir(exist_ok=True)
      file.write_text(text)
    return {}

  def commit(
    self,
    staging: Path,
    final: Path,
    snapshot: dict[str, np.ndarray],
    metadata: verification.Metadata,
  ) -> None:
    file = staging / _STATE_FILE
    flax_format.write(file, snapshot, metadata, read_inputs(staging))
    paths.commit(file, final)
    paths.discard(staging)


def layout_of(kind: CheckpointType, *, use_ocdbt: bool = True) -> Layout[Any]:
  """Returns the layout of checkpoints of this type.

  Args:
    kind: The type.
    use_ocdbt: See `CheckpointOptions.use_ocdbt`.
  """
  if kind is CheckpointType.FLAX:
    return FileLayout()
  return OrbaxLayout() if use_ocdbt else LeafLayout()


def _check_dtypes(state: State) -> None:
  """Refuses PRNG keys, which no format can restore.

  Raises:
    ValueError: The state has one.
  """
  # Those of keys are no dtypes of numpy.
  if all(isinstance(x.dtype, np.dtype) for x in jax.tree.leaves(state)):
    return
  name, leaf = next(
    (name, leaf)
    for name, leaf in paths.flatten(state).items()
    if not isinstance(leaf.dtype, np.dtype)
  )
  raise ValueError(
    f'{name} must be an array of numbers, got one of {leaf.dtype}; save'
    ' jax.random.key_data of it, and restore it by jax.random.wrap_key_data'
  )


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
  # `manifest.write` flushes both.
  file = paths.side_folder(staging) / _TRAIN_INPUT / name
  file.parent.mkdir(exist_ok=True)
  atomic_file.write_text(file, text, is_durable=False)
  return {str(file.relative_to(staging)): manifest.entry(text.encode())}


def read_inputs(path: storage.Path) -> dict[str, str]:
  """Returns the input states by process name, as JSON."""
  folder = paths.side_folder(path) / _TRAIN_INPUT
  files = folder.glob('process_*') if folder.exists() else ()
  return {
    # A checkpoint without a manifest may contain any bytes.
    file.name: file.read_text(errors='backslashreplace')
    for file in files
  }
