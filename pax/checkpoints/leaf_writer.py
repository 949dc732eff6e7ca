# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint leaf by leaf, with one leaf in memory at a time."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable

import jax
import numpy as np

from pax.checkpoints import paths
from pax.checkpoints.formats import (
  host_arrays,
  layouts,
  manifest,
  tensorstore_format,
  verification,
)
from pax.checkpoints.types import CheckpointError
from pax.files import atomic_file


def write_leaves(
  final: pathlib.Path, leaves: Iterable[tuple[str, np.ndarray]], step: int
) -> None:
  """Writes a checkpoint of one process; on return it is complete.

  Its format is TensorStore, which restores on any mesh.

  Args:
    final: Path of the checkpoint, of a name that `paths.checkpoint_name` makes.
    leaves: Names and values; each value is freed before the next is read.
    step: The training step.

  Raises:
    CheckpointError: The checkpoint exists, or there are several processes.
    OSError: A file cannot be written.
  """
  if jax.process_count() > 1:
    raise CheckpointError(
      f'{final} must be written by one process, got {jax.process_count()};'
      ' start one'
    )
  if final.exists():
    raise CheckpointError(f'{final} exists already; choose another directory')
  atomic_file.make_folder(final.parent, parents=True)
  staging = paths.staging(final)
  paths.discard(staging)
  staging.mkdir()
  layout = layouts.LeafLayout()
  entries: dict[str, manifest.Entry] = {}
  for name, value in leaves:
    entries |= tensorstore_format.write(staging, {name: _in_chunks(value)})
    # The generator frees it when it makes the next one.
    del value
  metadata = verification.create_metadata(step)
  entries |= layout.finish(staging, {}, metadata)
  manifest.write(staging, entries, index=0, count=1)
  layout.commit(staging, final, {}, metadata)


def _in_chunks(value: np.ndarray) -> host_arrays.HostArray:
  """Returns views of the array with the size of a file each."""
  shape = tensorstore_format.chunk_shape(
    value.shape, value.dtype.itemsize, tensorstore_format.MAX_CHUNK_BYTES
  )
  starts = [
    range(0, size, part) for size, part in zip(value.shape, shape, strict=True)
  ]
  indices = [
    tuple(slice(i, i + n) for i, n in zip(start, shape, strict=True))
    for start in itertools.product(*starts)
  ]
  return host_arrays.HostArray(
    value.shape,
    value.dtype,
    shape,
    [(index, value[index]) for index in indices],
  )
