# SPDX-License-Identifier: Apache-2.0
"""Data-parallel replicas with the semantics of `pmap`.

Every device holds the full state and runs the step on its own rows of the
batch; only collectives over the axis `batch` connect the replicas. It is a
`jax.shard_map` over a mesh of that one axis, so that compilation and
checkpoints are those of SPMD: arrays are global, without a dimension for the
devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from typing_extensions import override

from pax import steps, train_states
from pax.inputs import prefetch
from pax.partitioning import mesh as mesh_lib
from pax.partitioning.batches import BatchPlacer
from pax.partitioning.partitioner import Partitioner
from pax.partitioning.step_protocols import BoundStep
from pax.train_states import Variables
from praxis import base_input, base_layer
from praxis.pytypes import Nested

Batch = steps.Batch
TrainState = train_states.TrainState

REPLICA_AXIS = base_layer.PMAP_PARALLEL_AXIS_NAME
_REPLICATED = PartitionSpec()
_BY_ROWS = PartitionSpec(REPLICA_AXIS)


class PmapPartitioner(Partitioner):
  """Partitions the steps of a model without mesh over replicas."""

  _axis_name = REPLICA_AXIS
  _requires_even_batches = True

  def __init__(
    self, init_is_eval: bool, *, devices: Sequence[jax.Device] | None = None
  ):
    """Makes one replica on each device.

    Args:
      init_is_eval: Whether variables are declared in evaluation mode, unless
        `task.train.always_use_train_for_model_init` is set.
      devices: The devices; None is all.
    """
    super().__init__(init_is_eval)
    self._mesh = mesh_lib.create_replica_mesh(REPLICA_AXIS, devices)

  @property
  @override
  def mesh(self) -> Mesh:
    """The mesh of one axis."""
    return self._mesh

  @override
  def init_spec(self, host_spec: Batch) -> Batch:
    """Returns the shapes of the batch of one device.

    Raises:
      ValueError: The rows cannot be sharded evenly.
    """
    placer = BatchPlacer(
      self._mesh, self._batch_spec, requires_even_batches=True
    )
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.sharding.shard_shape(x.shape), x.dtype),
      placer.global_spec(host_spec),
    )

  @override
  def preprocess_inputs(
    self,
    input_pipeline: base_input.BaseInput,
    padded_inputs: Batch,
    partition_specs: Nested[PartitionSpec] | None,
  ) -> Batch:
    """Returns the global batch.

    An input with a `reshard_for_pmap` of its own deals out its rows.

    Args:
      input_pipeline: The input.
      padded_inputs: Its batch.
      partition_specs: None.
    """
    del partition_specs
    input_pipeline = prefetch.source_of(input_pipeline)
    reshard = base_input.BaseInput.reshard_for_pmap
    if type(input_pipeline).reshard_for_pmap is not reshard:
      padded_inputs = jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:]),
        input_pipeline.reshard_for_pmap(padded_inputs),
      )
    return self.put_batch(padded_inputs)

  @override
  def _global_shapes(self, init_spec: Batch) -> Batch:
    def global_shape(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
      shape = tuple(x.shape)
      if shape:
        shape = (shape[0] * self._mesh.size, *shape[1:])
      return jax.ShapeDtypeStruct(shape, x.dtype)

    return jax.tree.map(global_shape, init_spec)

  @override
  def _put_state(self, state: TrainState) -> TrainState:
    return jax.device_put(state, NamedSharding(self._mesh, _REPLICATED))

  @override
  def _make_state_specs(
    self, var_weight_hparams: Variables[base_layer.WeightHParams]
  ) -> TrainState[PartitionSpec]:
    shapes = self.task.create_train_state_unpadded_shapes(var_weight_hparams)
    return jax.tree.map(lambda _: _REPLICATED, shapes)

  @override
  def _batch_spec(self, rank: int) -> PartitionSpec:
    return _BY_ROWS if rank else _REPLICATED

  @override
  def _parallelize(self, step: BoundStep, output_specs: Any) -> BoundStep:
    return jax.shard_map(
      step,
      mesh=self._mesh,
      in_specs=(_REPLICATED, _BY_ROWS, _REPLICATED),
      out_specs=output_specs,
      # As under pmap, only the step knows which outputs replicas share.
      check_vma=False,
    )
