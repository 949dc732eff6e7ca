# SPDX-License-Identifier: Apache-2.0
"""Readers of the formats of checkpoints, of Pax and of paxml."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from typing import Any, Protocol

import numpy as np

from pax.checkpoints import paths
from pax.checkpoints.formats import (
  array_reader,
  chunk_index,
  flax_format,
  layouts,
  manifest,
  paxml_flax_format,
  tensorstore_format,
  verification,
)
from pax.checkpoints.types import (
  CheckpointError,
  CorruptCheckpointError,
  LeafDict,
  Shapes,
)
from pax.files import storage

Path = storage.Path


class FormatReader(Protocol):
  """Reader of one format; has read and verified all files but the data."""

  shapes: Shapes
  # Name of the checkpoint with the other leaves, if any.
  frozen_checkpoint: str | None

  def verify(self) -> None:
    """Checks the data that have not been checked yet."""
    ...

  def read(self, abstract: LeafDict) -> LeafDict:
    """Returns leaves of the checkpoint, verified."""
    ...

  def input_texts(self) -> Mapping[str, str]:
    """Returns the input state of each process as JSON."""
    ...


class _VerifiedReader:
  """Arrays in files with a manifest, each verified when it is first read."""

  def __init__(
    self,
    path: Path,
    folder: Path,
    entries: Mapping[str, manifest.Entry],
    readers: Sequence[int],
  ):
    """Reads the shapes.

    Args:
      path: The checkpoint.
      folder: The checkpoint, or a copy without the data.
      entries: All manifest entries.
      readers: The processes that each compare a part of the checksums.
    """
    self._path = path
    self._folder = folder
    self._readers = readers
    self._is_database = tensorstore_format.is_database(entries)
    data = tensorstore_format.data_files(entries)
    self._data = {name: entries[name] for name in data}
    self._entries = entries
    metadata = verification.own_metadata(folder)
    self.shapes = (
      verification.recorded_shapes(metadata)
      if self._is_database
      else self._index.shapes()
    )
    self.frozen_checkpoint: str | None = metadata.get('frozen_checkpoint')
    self._verified: set[str] = set()

  def verify(self) -> None:
    files = self._data.keys() - self._verified
    self._compare(verification.own_part(files, self._readers))
    self._verified |= files

  def read(self, abstract: LeafDict) -> LeafDict:
    if not abstract:
      return {}
    files = self._files_of(abstract)
    part = verification.own_part(files - self._verified, self._readers)
    leaves = _read_or_explain(
      lambda: self._read(abstract, part),
      # The damaged file may be the index, or one that another process verifies.
      lambda: manifest.verify(self._path, self._entries),
    )
    self._verified |= files
    return leaves

  def input_texts(self) -> Mapping[str, str]:
    return layouts.read_inputs(self._folder)

  @functools.cached_property
  def _index(self) -> chunk_index.ChunkIndex:
    if self._is_database:
      return chunk_index.read_database(self._folder)
    return chunk_index.read_leaves(self._folder, self._entries)

  def _read(self, abstract: LeafDict, own_files: Collection[str]) -> LeafDict:
    reader = array_reader.ArrayReader(self._path, self._data, self._index)
    arrays = reader.find(abstract)
    if arrays is not None:
      return reader.read(arrays, own_files)
    # Compressed arrays, for example.
    leaves = tensorstore_format.LeafReader(self._path)
    return _verified(
      lambda: self._compare(own_files), lambda: leaves.read(abstract)
    )

  def _files_of(self, leaves: Collection[str]) -> set[str]:
    """Returns the files of leaves; those of a database belong to all."""
    return {
      name
      for name in self._data
      if self._is_database or tensorstore_format.leaf_of(name) in leaves
    }

  def _compare(self, files: Collection[str]) -> None:
    """Compares the checksums of files.

    Raises:
      CorruptCheckpointError: A file cannot be read, or differs.
    """
    manifest.verify(self._path, {name: self._data[name] for name in files})


class _UnverifiedReader:
  """Arrays in files without checksums, such as those that paxml wrote."""

  frozen_checkpoint: str | None = None

  def __init__(self, path: Path, folder: Path):
    self._folder = folder
    self._leaves = tensorstore_format.LeafReader(path)
    self.shapes = self._leaves.shapes()

  def verify(self) -> None:
    pass

  def read(self, abstract: LeafDict) -> LeafDict:
    try:
      return self._leaves.read(abstract)
    except CorruptCheckpointError as e:
      raise CheckpointError(
        f'{e}; its files have no checksums, which would tell damage from a'
        ' failure of the storage'
      ) from e

  def input_texts(self) -> Mapping[str, str]:
    # The states of inputs that paxml wrote are of other formats than JSON.
    is_paxml = (self._folder / paths.METADATA_FILE).is_dir()
    return {} if is_paxml else layouts.read_inputs(self._folder)


class FileReader:
  """A single file, which is in memory while the checkpoint is open."""

  def __init__(
    self,
    state: Mapping[str, np.ndarray],
    texts: Mapping[str, str],
    metadata: Mapping[str, Any],
  ):
    self._state = state
    self._input_texts = texts
    self.frozen_checkpoint = metadata.get('frozen_checkpoint')
    self.shapes: Shapes = {
      name: (x.shape, x.dtype.name) for name, x in state.items()
    }

  def verify(self) -> None:
    pass

  def read(self, abstract: LeafDict) -> LeafDict:
    return flax_format.place(self._state, abstract)

  def input_texts(self) -> Mapping[str, str]:
    return self._input_texts


def open_format(
  path: Path, folder: Path, sizes: Mapping[str, int], readers: Sequence[int]
) -> FormatReader:
  """Returns the reader of a checkpoint.

  Args:
    path: The checkpoint.
    folder: The checkpoint, or a copy without the data.
    sizes: Sizes of its files by path below it; empty if it is a file.
    readers: The processes that each compare a part of the checksums.
  """
  if file := paxml_flax_format.find_file(folder):
    return FileReader(paxml_flax_format.read(file), {}, {})
  if not folder.is_dir():
    state, metadata, train_input = flax_format.read(folder)
    return FileReader(state, train_input, metadata)
  entries = verification.verify_metadata(folder, sizes)
  if entries:
    return _VerifiedReader(path, folder, entries, readers)
  return _UnverifiedReader(path, folder)


def _verified(
  verify: Callable[[], None], read: Callable[[], LeafDict]
) -> LeafDict:
  """Returns what `read` does, while `verify` runs in a thread.

  Both read the same files: a disk is read once.

  Args:
    verify: Raises the error of damaged files, which replaces that of `read`.
    read: Returns leaves.
  """
  with futures.ThreadPoolExecutor(1, 'verify') as pool:
    verification = pool.submit(verify)
    try:
      leaves = read()
    finally:
      verification.result()
  return leaves


def _read_or_explain(
  read: Callable[[], LeafDict], verify: Callable[[], None]
) -> LeafDict:
  """Returns what `read` does; if it fails, all files are verified.

  Args:
    read: Returns leaves.
    verify: Raises the error of damaged files, which replaces that of `read`.

  Raises:
    CheckpointError: Reading fails, and no file is damaged.
  """
  try:
    return read()
  except CorruptCheckpointError as e:
    verify()
    raise CheckpointError(
      f'{e}; the checksums of its files are as written, so that it can be read'
      ' later'
    ) from e
