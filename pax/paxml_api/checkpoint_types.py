# SPDX-License-Identifier: Apache-2.0
"""The format of a task's checkpoints."""

from __future__ import annotations

from pax import tasks_lib
from pax.checkpoints.types import CheckpointType
from praxis import pax_fiddle, py_utils


def retrieve_checkpoint_type(
  maybe_use_persistence_checkpointing: bool,
  task: tasks_lib.SingleTask | pax_fiddle.Config[tasks_lib.SingleTask],
) -> CheckpointType:
  """Returns the format in which the states of a task are saved.

  GDA for a model with a mesh, or with --pmap_use_tensorstore; otherwise FLAX.

  Args:
    maybe_use_persistence_checkpointing: Selects PERSISTENCE instead of GDA,
      in which nothing can be saved.
    task: A task, or its Config.
  """
  if task.model.mesh_shape is None and not py_utils.pmap_use_tensorstore():
    return CheckpointType.FLAX
  if maybe_use_persistence_checkpointing:
    return CheckpointType.PERSISTENCE
  return CheckpointType.GDA
