# SPDX-License-Identifier: Apache-2.0
"""Data-parallel replicas with the semantics of pmap: all of that mode is here.

Every device holds the whole state and runs the step on its own rows of the
batch, knowing the others only through collectives over the axis `batch`. It is
spelled as a shard_map over a mesh of that one axis, so that placement,
compilation and checkpoints are those of SPMD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pax import tasks_lib, train_states
from pax.partitioning import mesh as mesh_lib
from pax.partitioning.placement import Placement
from praxis import base_layer

AXIS = base_layer.PMAP_PARALLEL_AXIS_NAME
_REPLICATED = PartitionSpec()
_BY_ROWS = PartitionSpec(AXIS)


def replica_placement(
  task: tasks_lib.SingleTask, devices: Sequence[jax.Device] | None
) -> Placement:
  """Returns the placement of one replica on each device."""
  mesh = mesh_lib.create_replica_mesh(AXIS, devices)

  def state_specs(var_weight_hparams: Any) -> train_states.TrainState:
    shapes = task.create_train_state_unpadded_shapes(var_weight_hparams)
    return jax.tree.map(lambda _: _REPLICATED, shapes)

  def globalize(
    step: Callable[..., Any], output_specs: Any
  ) -> Callable[..., Any]:
    return jax.shard_map(
      step,
      mesh=mesh,
      in_specs=(_REPLICATED, _BY_ROWS, _REPLICATED),
      out_specs=output_specs,
      # As under pmap, only the step itself knows what is equal on all replicas.
      check_vma=False,
    )

  return Placement(
    mesh=mesh,
    axis_name=AXIS,
    state_specs=state_specs,
    batch_spec=lambda rank: _BY_ROWS if rank else _REPLICATED,
    globalize=globalize,
    even_batches=True,
  )
