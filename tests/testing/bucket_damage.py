# SPDX-License-Identifier: Apache-2.0
"""Damages every object of a checkpoint in a bucket: found, named, survived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pax import checkpoints
from pax.checkpoints import paths
from pax.files import storage
from tests.testing import saved_states, trees

GDA, FLAX = checkpoints.CheckpointType.GDA, checkpoints.CheckpointType.FLAX
LAYOUTS: Mapping[str, tuple[checkpoints.CheckpointType, dict[str, Any]]] = {
  'ocdbt': (GDA, {}),
  'leaves': (GDA, {'use_ocdbt': False}),
  'one_file': (FLAX, {}),
}


def flip(file: storage.BucketPath) -> None:
  """Flips a bit of an object."""
  data = bytearray(file.read_bytes())
  data[len(data) // 2] ^= 1
  file.write_bytes(bytes(data))


def truncate(file: storage.BucketPath) -> None:
  """Removes the last byte of an object."""
  file.write_bytes(file.read_bytes()[:-1])


DAMAGES: Mapping[str, Callable[[storage.BucketPath], None]] = {
  'flip': flip,
  'truncate': truncate,
  'delete': storage.BucketPath.unlink,
}


def create_checkpointer(
  job: storage.BucketPath,
  kind: checkpoints.CheckpointType = GDA,
  **options: Any,
) -> checkpoints.Checkpointer:
  """Returns a synchronous checkpointer of a job that saves at every step."""
  options = {'save_interval_steps': 1, 'asynchronous': False} | options
  return checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(**options), str(job), kind
  )


def checkpoint_names(job: storage.BucketPath) -> list[str]:
  """Returns the names in the folder of checkpoints that have objects."""
  files = (job / paths.CHECKPOINTS).files()
  return sorted({file.partition('/')[0] for file in files})


def check_damage(job: storage.BucketPath, layout: str, damage: str) -> int:
  """Damages the objects of the newer of two checkpoints, one after the other.

  Args:
    job: The directory of a new job.
    layout: A key of `LAYOUTS`.
    damage: A key of `DAMAGES`.

  Returns:
    The number of objects.
  """
  kind, options = LAYOUTS[layout]
  states = {step: saved_states.state(1, scale=step) for step in (1, 2)}
  abstract = trees.abstract(states[1])
  fallback = create_checkpointer(job, kind, skips_corrupt=True, **options)
  for step, state in states.items():
    fallback.save(step, state, {'examples': step})
  folder = job / paths.CHECKPOINTS
  newest = folder / paths.checkpoint_name(2, kind)
  objects = [newest / name for name in newest.files()] or [newest]
  contents = {file: file.read_bytes() for file in objects}
  for file in objects:
    DAMAGES[damage](file)
    strict = create_checkpointer(job, kind, **options)
    if damage == 'delete' and file in (newest, newest / storage.MARKER):
      # A checkpoint without it does not exist.
      assert strict.restore(abstract).step == 1
    elif file.name == storage.MARKER:
      # It commits by its presence.
      assert strict.restore(abstract).step == 2
    else:
      with pytest.raises(checkpoints.CorruptCheckpointError) as error:
        strict.restore(abstract)
      assert str(file) in str(error.value), error.value
      restored = fallback.restore(abstract)
      assert restored.step == 1
      saved_states.check_equal(restored.state, states[1])
      names = checkpoint_names(job)
      (corrupt,) = (name for name in names if name.startswith('corrupt_'))
      assert newest.name not in names
      storage.remove_tree(folder / corrupt)
    for path, data in contents.items():
      path.write_bytes(data)
  assert fallback.restore(abstract).step == 2
  return len(objects)
