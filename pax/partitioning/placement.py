# SPDX-License-Identifier: Apache-2.0
"""Placement of state and batches: all that differs between SPMD and pmap.

`spmd_placement`: one program over the global batch; the XLA partitioner splits
it over the mesh of the model.

`replica_placement`: data-parallel replicas with the semantics of `pmap`. Every
device holds the full state and runs the step on its own rows of the batch; only
collectives over the axis `batch` connect the replicas. It is a `jax.shard_map`
over a mesh of that one axis, so that compilation and checkpoints are those of
SPMD.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from pax import tasks_lib, train_states
from pax.partitioning import mesh as mesh_lib
from pax.partitioning import specs
from pax.steps import Batch
from praxis import base_layer, pytypes

Nested = pytypes.Nested

REPLICA_AXIS = base_layer.PMAP_PARALLEL_AXIS_NAME
_REPLICATED = PartitionSpec()
_BY_ROWS = PartitionSpec(REPLICA_AXIS)

# (state, batch, key) -> outputs.
StepFn = Callable[[train_states.TrainState, Batch, jax.Array], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
  """Shardings of state and batches, and the wrapper that runs steps on them."""

  mesh: Mesh
  # Mesh axis of the replicas, each running the step on its own rows of
  # the batch; None for SPMD.
  axis_name: str | None
  # WeightHParams of the variables -> TrainState of PartitionSpecs.
  state_specs: Callable[
    [Nested[base_layer.WeightHParams]], train_states.TrainState[PartitionSpec]
  ]
  # Rank of an input -> its PartitionSpec.
  batch_spec: Callable[[int], PartitionSpec]
  # (step on the rows of one replica, specs of its outputs) -> step on the
  # global batch.
  parallelize: Callable[[StepFn, Any], StepFn]
  # Whether a batch that the mesh does not divide evenly is an error; otherwise
  # steps shard it unevenly.
  requires_even_batches: bool


def spmd_placement(
  task: tasks_lib.SingleTask, devices: Sequence[jax.Device] | None
) -> Placement:
  """Returns the placement on the mesh that the model declares.

  Raises:
    ValueError: The mesh does not fit the devices.
  """
  model = task.model
  if not model.mesh_axis_names:
    raise ValueError(
      f'ici_mesh_shape is {list(model.ici_mesh_shape)} and mesh_axis_names is '
      'not set; set task.model.mesh_axis_names, e.g. (replica, data, mdl)'
    )
  mesh = mesh_lib.create_mesh(
    model.ici_mesh_shape,
    model.dcn_mesh_shape,
    model.mesh_axis_names,
    devices=devices,
    contiguous_submeshes=bool(model.contiguous_submeshes),
  )
  mapping = task.train.inputs_split_mapping
  return Placement(
    mesh=mesh,
    axis_name=None,
    state_specs=task.create_train_state_partition_specs,
    batch_spec=lambda rank: specs.batch_spec(mapping, rank, mesh.axis_names),
    # The step is written for the global batch.
    parallelize=lambda step, output_specs: step,
    requires_even_batches=False,
  )


def replica_placement(
  task: tasks_lib.SingleTask, devices: Sequence[jax.Device] | None
) -> Placement:
  """Returns the placement of one replica on each device."""
  mesh = mesh_lib.create_replica_mesh(REPLICA_AXIS, devices)

  def state_specs(
    var_weight_hparams: Nested[base_layer.WeightHParams],
  ) -> train_states.TrainState[PartitionSpec]:
    shapes = task.create_train_state_unpadded_shapes(var_weight_hparams)
    return jax.tree.map(lambda _: _REPLICATED, shapes)

  def parallelize(step: StepFn, output_specs: Any) -> StepFn:
    return jax.shard_map(
      step,
      mesh=mesh,
      in_specs=(_REPLICATED, _BY_ROWS, _REPLICATED),
      out_specs=output_specs,
      # As under pmap, only the step knows which outputs replicas share.
      check_vma=False,
    )

  return Placement(
    mesh=mesh,
    axis_name=REPLICA_AXIS,
    state_specs=state_specs,
    batch_spec=lambda rank: _BY_ROWS if rank else _REPLICATED,
    parallelize=parallelize,
    requires_even_batches=True,
  )
