# SPDX-License-Identifier: Apache-2.0
"""Index of the chunks of a checkpoint: file, offset and size of each.

The keys are those of zarr: `PREFIX.zarray` is the metadata of an array, and
`PREFIX0.1` a chunk of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pax.checkpoints import paths
from pax.checkpoints.formats import manifest, ocdbt_nodes, tensorstore_format
from pax.checkpoints.types import CorruptCheckpointError, Shapes
from pax.files import storage

Path = storage.Path


@dataclasses.dataclass(frozen=True, order=True)
class Location:
  """A part of a file."""

  # Path below the checkpoint.
  file: str
  offset: int
  size: int

  @property
  def end(self) -> int:
    """The offset of the next byte."""
    return self.offset + self.size

  @property
  def part(self) -> manifest.Part:
    """The part of the file."""
    return self.offset, self.size


@dataclasses.dataclass(frozen=True)
class ChunkIndex:
  """Where the values of all keys are."""

  # First part of the keys of each leaf.
  prefixes: Mapping[str, str]
  # A small value is in the index itself.
  values: Mapping[str, bytes | Location]

  def metadata(self, leaf: str) -> dict[str, Any] | None:
    """Returns the contents of `.zarray` of a leaf; None if there is none."""
    prefix = self.prefixes.get(leaf)
    text = self.values.get(f'{prefix}{tensorstore_format.ZARRAY}')
    return json.loads(text) if isinstance(text, bytes) else None

  def shapes(self) -> Shapes:
    """Returns shape and dtype name of every leaf that has metadata."""
    return {
      leaf: (tuple(metadata['shape']), np.dtype(metadata['dtype']).name)
      for leaf in self.prefixes
      if (metadata := self.metadata(leaf))
    }


def read_leaves(
  folder: Path, entries: Mapping[str, manifest.Entry]
) -> ChunkIndex:
  """Returns the index of a checkpoint with a folder of files per leaf.

  Args:
    folder: The checkpoint; `.zarray` of each leaf is read.
    entries: Manifest entries of its files.
  """
  root = f'{paths.STATE_FOLDER}/'
  prefixes: dict[str, str] = {}
  values: dict[str, bytes | Location] = {}
  for name, (size, _) in entries.items():
    leaf = tensorstore_format.leaf_of(name)
    if not leaf:
      continue
    prefixes[leaf] = f'{leaf}/'
    is_metadata = tensorstore_format.is_leaf_metadata(name)
    values[name.removeprefix(root)] = (
      (folder / name).read_bytes() if is_metadata else Location(name, 0, size)
    )
  return ChunkIndex(dict(sorted(prefixes.items())), values)


def read_database(folder: Path) -> ChunkIndex:
  """Returns the index of a checkpoint with an OCDBT database.

  Args:
    folder: The checkpoint; the files with the values need not exist.

  Raises:
    CorruptCheckpointError: The index cannot be read.
  """
  database = folder / paths.STATE_FOLDER
  prefixes = tensorstore_format.database_prefixes(database)
  with tensorstore_format.raise_as(CorruptCheckpointError, database):
    return ChunkIndex(prefixes, read_values(folder, paths.STATE_FOLDER))


def read_values(folder: Path, name: str) -> dict[str, bytes | Location]:
  """Returns where the values of all keys of an OCDBT database are.

  Args:
    folder: The checkpoint.
    name: Path of the database below it.

  Raises:
    ValueError: The index is damaged.
    OSError: A file of it cannot be read.
  """
  return {
    key: value
    if isinstance(value, bytes)
    else Location(f'{name}/{value.file}', value.offset, value.size)
    for key, value in ocdbt_nodes.read_values(folder / name)
  }
