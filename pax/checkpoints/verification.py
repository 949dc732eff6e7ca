# SPDX-License-Identifier: Apache-2.0
"""Metadata and file checks of checkpoints that are directories.

The data of leaves are divided among the processes of a job; every process
checks the other files before it reads them.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import jax

from pax.checkpoints import manifest, paths, tensorstore_format
from pax.checkpoints.types import (
  CheckpointError,
  CorruptCheckpointError,
  Shapes,
)

Path = pathlib.Path

_VERSION = 1.1
OCDBT_VERSION = 1.2
# Of checkpoints that paxml wrote; 0 has no metadata, 1.2 is OCDBT.
_PAXML_VERSIONS = (0.0, 1.0, 1.1, 1.2)
# Where Orbax and paxml have the metadata.
METADATA_IN_FOLDER = f'{paths.METADATA_FILE}/{paths.METADATA_FILE}'


class Metadata(TypedDict):
  """Contents of the file `metadata`."""

  version: float
  step: int
  num_processes: int
  # Seconds since 1970.
  saved_at: float


def create_metadata(step: int) -> Metadata:
  """Returns the metadata of a checkpoint that this job writes."""
  return {
    'version': _VERSION,
    'step': step,
    'num_processes': jax.process_count(),
    'saved_at': time.time(),
  }


def read_metadata(file: Path) -> dict[str, Any]:
  """Returns the contents of a file `metadata`.

  Raises:
    CorruptCheckpointError: The file cannot be read, or has no version.
  """
  try:
    metadata = json.loads(file.read_bytes())
    # A missing version, or another type, is a fault.
    float(metadata['version'])
    int(metadata.get('num_processes', 0))
    return metadata
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
    raise CorruptCheckpointError(
      f'{file} cannot be read ({type(e).__name__}: {e})'
    ) from e


def verify_metadata(path: Path) -> Mapping[str, manifest.Entry]:
  """Checks all files but the chunks of leaves; returns the manifest entries.

  Every process checks them, because every process reads them.

  Raises:
    CheckpointError: Another version of Pax saved the checkpoint.
    CorruptCheckpointError: A file is missing or differs.
  """
  # Checkpoints of upstream Pax have no manifest.
  entries = manifest.read(path)
  if entries is not None:
    manifest.check_names(path, entries)
    manifest.verify(
      path,
      {
        name: entry
        for name, entry in entries.items()
        if tensorstore_format.leaf_of(name) is None
        or tensorstore_format.is_leaf_metadata(name)
      },
    )
  if entries is None and (
    tensorstore_format.has_leaves_of_version_0(path)
    or (path / paths.METADATA_FILE).is_dir()
  ):
    _check_paxml_version(path)
    return {}
  metadata = read_metadata(path / paths.METADATA_FILE)
  if metadata['version'] != _VERSION:
    raise CheckpointError(
      f'{path} has format version {metadata["version"]}, expected {_VERSION};'
      ' read it with the version of Pax that saved it'
    )
  count = int(metadata.get('num_processes', 0))
  if entries is None and count:
    raise CorruptCheckpointError(f'{manifest.file(path, 0, count)} is missing')
  return entries or {}


def verify_leaves(
  path: Path,
  entries: Mapping[str, manifest.Entry],
  leaves: Collection[str] | None,
  readers: Sequence[int],
) -> None:
  """Checks the chunks of leaves.

  Args:
    path: The checkpoint.
    entries: All manifest entries.
    leaves: Names of leaves; None is all.
    readers: The processes that each compare a part of the checksums.

  Raises:
    CorruptCheckpointError: A file is missing or differs.
  """
  part = own_part(entries, readers)
  selected = {}
  for name, entry in entries.items():
    leaf = tensorstore_format.leaf_of(name)
    is_selected = leaf is not None and (leaves is None or leaf in leaves)
    if is_selected and not tensorstore_format.is_leaf_metadata(name):
      selected[name] = entry
  manifest.verify(path, selected, part.__contains__)


def verify_database(path: Path) -> Mapping[str, manifest.Entry]:
  """Checks all files of a checkpoint of Orbax but the data of leaves.

  Args:
    path: The checkpoint.

  Returns:
    The manifest entries of the data.

  Raises:
    CheckpointError: Another version of Pax saved the checkpoint.
    CorruptCheckpointError: A file is missing or differs.
  """
  entries = manifest.read(path) or {}
  manifest.check_names(path, entries)
  is_data = tensorstore_format.is_database_file
  manifest.verify(path, {k: v for k, v in entries.items() if not is_data(k)})
  version = read_metadata(path / METADATA_IN_FOLDER)['version']
  if version != OCDBT_VERSION:
    raise CheckpointError(
      f'{path} has format version {version}, expected {OCDBT_VERSION}; read it'
      ' with the version of Pax that saved it'
    )
  return {k: v for k, v in entries.items() if is_data(k)}


def verify_data(
  path: Path,
  entries: Mapping[str, manifest.Entry],
  readers: Sequence[int],
) -> None:
  """Checks the data of a checkpoint of Orbax.

  Args:
    path: The checkpoint.
    entries: What `verify_database` returns.
    readers: The processes that each compare a part of the checksums.

  Raises:
    CorruptCheckpointError: A file is missing or differs.
  """
  manifest.verify(path, entries, own_part(entries, readers).__contains__)


def own_part(files: Iterable[str], readers: Sequence[int]) -> set[str]:
  """Returns the files whose checksums this process compares.

  Args:
    files: Paths below the checkpoint.
    readers: The processes that each compare a part of the checksums.
  """
  part = list(readers).index(jax.process_index())
  return set(sorted(files)[part :: len(readers)])


def recorded_shapes(path: Path) -> Shapes:
  """Returns shape and dtype of every leaf, from the metadata.

  Raises:
    CorruptCheckpointError: The metadata cannot be read.
  """
  metadata = read_metadata(path / METADATA_IN_FOLDER)
  return {
    name: (tuple(shape), dtype)
    for name, (shape, dtype) in metadata['shapes'].items()
  }


def _check_paxml_version(path: Path) -> None:
  """Checks the format version of a checkpoint of paxml.

  Raises:
    CheckpointError: The version is unknown.
    CorruptCheckpointError: The metadata cannot be read, or are those of Pax.
  """
  # Orbax writes a folder with a file of the same name.
  file = path / paths.METADATA_FILE / paths.METADATA_FILE
  has_metadata = (path / paths.METADATA_FILE).exists()
  metadata = read_metadata(file) if has_metadata else {'version': 0.0}
  version, count = metadata['version'], int(metadata.get('num_processes', 0))
  if count:
    raise CorruptCheckpointError(f'{manifest.file(path, 0, count)} is missing')
  if version not in _PAXML_VERSIONS:
    raise CheckpointError(
      f'{path} has format version {version} of paxml, expected one of'
      f' {_PAXML_VERSIONS}'
    )
