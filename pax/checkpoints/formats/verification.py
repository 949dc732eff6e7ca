# SPDX-License-Identifier: Apache-2.0
"""Metadata of checkpoints that are directories, and the checks of their files.

Every process checks the files that are not data before it reads them. The
checksums of the data are divided among the processes of a job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import jax

from pax.checkpoints import paths
from pax.checkpoints.formats import manifest, tensorstore_format
from pax.checkpoints.types import (
  CheckpointError,
  CorruptCheckpointError,
  Shapes,
)
from pax.files import storage

Path = storage.Path

_VERSION = 1.1
OCDBT_VERSION = 1.2
# Versions of checkpoints of paxml; 0 has no metadata, 1.2 is OCDBT.
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
  # Name of the checkpoint with the leaves that this one has not.
  frozen_checkpoint: NotRequired[str]


def create_metadata(
  step: int, frozen_checkpoint: str | None = None
) -> Metadata:
  """Returns the metadata of a checkpoint that this job writes.

  Args:
    step: The training step.
    frozen_checkpoint: Name of the checkpoint with the frozen leaves, if any.
  """
  metadata: Metadata = {
    'version': _VERSION,
    'step': step,
    'num_processes': jax.process_count(),
    'saved_at': time.time(),
  }
  if frozen_checkpoint is not None:
    metadata['frozen_checkpoint'] = frozen_checkpoint
  return metadata


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


def verify_metadata(
  folder: Path, sizes: Mapping[str, int]
) -> Mapping[str, manifest.Entry]:
  """Checks all files but the data; of those only names and sizes.

  Args:
    folder: The checkpoint, or a copy without the data.
    sizes: Sizes of all files by path below the checkpoint.

  Returns:
    The manifest entries; none of a checkpoint that upstream Pax wrote, whose
    format version alone is checked.

  Raises:
    CheckpointError: Another version of Pax saved the checkpoint.
    CorruptCheckpointError: A file is missing or differs.
  """
  entries = manifest.read(folder)
  if entries:
    manifest.check_files(folder, sizes, entries)
    data = tensorstore_format.data_files(entries)
    manifest.verify(folder, {k: v for k, v in entries.items() if k not in data})
  elif (
    tensorstore_format.has_leaves_of_version_0(folder)
    or (folder / paths.METADATA_FILE).is_dir()
  ):
    _check_paxml_version(folder)
    return {}
  elif paths.ORBAX_METADATA_FILE in sizes:
    _check_items(folder, sizes)
  is_database = tensorstore_format.is_database(entries or ())
  expected = OCDBT_VERSION if is_database else _VERSION
  metadata = read_metadata(
    folder / (METADATA_IN_FOLDER if is_database else paths.METADATA_FILE)
  )
  if metadata['version'] != expected:
    raise CheckpointError(
      f'{folder} has format version {metadata["version"]}, expected {expected};'
      ' read it with the version of Pax that saved it'
    )
  count = int(metadata.get('num_processes', 0))
  if not entries and count:
    raise CorruptCheckpointError(
      f'{manifest.file(folder, 0, count)} is missing'
    )
  return entries or {}


def own_metadata(folder: Path) -> dict[str, Any]:
  """Returns the metadata of a checkpoint that Pax wrote.

  Args:
    folder: The checkpoint, or a copy without the data.

  Raises:
    CorruptCheckpointError: The metadata cannot be read.
  """
  is_folder = (folder / paths.METADATA_FILE).is_dir()
  name = METADATA_IN_FOLDER if is_folder else paths.METADATA_FILE
  return read_metadata(folder / name)


def _check_items(folder: Path, sizes: Mapping[str, int]) -> None:
  """Checks that a checkpoint of Orbax has an item of Pax.

  Raises:
    CheckpointError: It is no checkpoint of a train state.
  """
  items = {name.partition('/')[0] for name in sizes if '/' in name}
  if not items & {paths.STATE_FOLDER, paths.METADATA_FILE}:
    raise CheckpointError(
      f'{folder} must have the items {paths.STATE_FOLDER} and'
      f' {paths.METADATA_FILE}, got {sorted(items)}: Orbax wrote it'
      ' without Pax; restore it with Orbax and save a TrainState with'
      ' paxml.checkpoint_managers.OrbaxCheckpointManager, or move it out of'
      f' {folder.parent}'
    )


def own_part(files: Iterable[str], readers: Sequence[int]) -> set[str]:
  """Returns those files whose checksums this process compares.

  Args:
    files: Paths below the checkpoint.
    readers: The processes that each compare a part of the checksums.
  """
  part = list(readers).index(jax.process_index())
  return set(sorted(files)[part :: len(readers)])


def recorded_shapes(metadata: Mapping[str, Any]) -> Shapes:
  """Returns shape and dtype of every leaf of a database.

  Args:
    metadata: Those of the checkpoint.
  """
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
