# SPDX-License-Identifier: Apache-2.0
"""The circular pipeline: every microbatch passes all stages several times."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from praxis import pytypes
from praxis.layers.pipeline import layerwise_shardable, stage_buffers
from praxis.layers.pipeline import schedule as schedule_lib

Carry = layerwise_shardable.Carry
NestedJTensor = pytypes.NestedJTensor
Schedule = schedule_lib.Schedule


class CircularLayerwiseShardablePipelined(
  layerwise_shardable.LayerwiseShardablePipelined
):
  """A pipeline whose stages hold circular_repeat groups of layers each.

  The bubble is that of one pass, for any number of passes. Weights have two
  leading axes, [circular_repeat, num_stages].

  References: interleaved stages in Megatron-LM,
  https://arxiv.org/abs/2104.04473, section 2.2.2.
  """

  # Number of passes of each microbatch through all stages.
  circular_repeat: int = 1
  # Whether all passes share weights, with one leading axis [num_stages].
  share_weights: bool = False
  # Whether the transfer from the last stage to the first takes one iteration
  # more, to overlap with computation; applies with more microbatches than
  # stages.
  enable_async_circular_transfer: bool = True

  def _num_repeats(self) -> int:
    return self.circular_repeat

  def _has_weights_per_repeat(self) -> bool:
    return not self.share_weights

  def _stage_indices(self) -> dict[str, Any]:
    if self.share_weights:
      return super()._stage_indices()
    stages = super()._stage_indices().items()
    return {
      f'circular_layer{repeat}.{name}': (repeat, stage)
      for repeat in range(self.circular_repeat)
      for name, stage in stages
    }

  def _weights_of_iteration(
    self, schedule: Schedule, t: pytypes.JTensor, weights: NestedJTensor
  ) -> NestedJTensor:
    if self.share_weights:
      return weights
    return _select_repeat(weights, schedule.repeat(t))

  def _store_weights_of_iteration(
    self,
    schedule: Schedule,
    t: pytypes.JTensor,
    weights: NestedJTensor,
    updates: NestedJTensor,
  ) -> NestedJTensor:
    if self.share_weights:
      return updates
    repeat = schedule.repeat(t)
    return jax.tree.map(
      lambda weight, update: _scatter(weight, repeat, update), weights, updates
    )

  def _carries_inputs(self) -> bool:
    return True

  def _initial_carry(self, schedule: Schedule, flow: NestedJTensor) -> Carry:
    """Adds slots, the inputs of the first stage by microbatch."""
    carry = super()._initial_carry(schedule, flow)
    slots = stage_buffers.at_first_stage(flow, schedule.num_stages)
    carry['slots'] = self._shard_stages(slots)
    if self._has_async_transfer(schedule):
      carry['in_flight'] = carry['state']
    return carry

  def _read_input(
    self, schedule: Schedule, carry: Carry, xs: Any
  ) -> tuple[Carry, NestedJTensor]:
    t, num_microbatches = xs['t'], schedule.num_microbatches
    carry = self._store_transferred(schedule, carry, t)
    inputs = stage_buffers.read_slot(carry['slots'], t % num_microbatches)
    if self.stream_io:
      _, streamed = super()._read_input(schedule, carry, xs)
      inputs = jax.tree.map(
        lambda new, stored: jnp.where(t < num_microbatches, new, stored),
        streamed,
        inputs,
      )
    return carry, inputs

  def _outputs(
    self, schedule: Schedule, carry: Carry, ys: Any
  ) -> NestedJTensor:
    if self.stream_io:
      return super()._outputs(schedule, carry, ys)
    end = jnp.asarray(schedule.num_valid_iterations)
    slots = carry['slots']
    if self._has_async_transfer(schedule):
      slots = _write_entry(slots, schedule, end - 2, carry['in_flight'])
    last = stage_buffers.rotate(carry['state'], 1)
    slots = _write_entry(slots, schedule, end - 1, last)
    return jax.tree.map(lambda x: x[0], slots)

  def _store_transferred(
    self, schedule: Schedule, carry: Carry, t: pytypes.JTensor
  ) -> Carry:
    """Writes outputs of the last stage to the slots of their microbatches.

    They are of the previous iteration, with asynchronous transfer of the one
    before.
    """
    carry = dict(carry)
    outputs = stage_buffers.rotate(carry['state'], 1)
    delay = schedule.num_stages
    if self._has_async_transfer(schedule):
      outputs, carry['in_flight'] = carry['in_flight'], outputs
      delay += 1
    carry['slots'] = _write_entry(carry['slots'], schedule, t - delay, outputs)
    return carry

  def _has_async_transfer(self, schedule: Schedule) -> bool:
    return (
      self.enable_async_circular_transfer
      and schedule.num_microbatches > schedule.num_stages
    )


def _write_entry(
  slots: NestedJTensor,
  schedule: Schedule,
  entry: pytypes.JTensor,
  values: NestedJTensor,
) -> NestedJTensor:
  """Writes the values of an entry of the schedule, unless it is negative."""
  slot = entry % schedule.num_microbatches
  previous = stage_buffers.read_slot(slots, slot)
  values = jax.tree.map(
    lambda new, old: jnp.where(entry >= 0, new, old), values, previous
  )
  return stage_buffers.write_slot(slots, slot, values)


def _select_repeat(
  weights: NestedJTensor, repeat: pytypes.JTensor
) -> NestedJTensor:
  """Selects weights [S, ...] from [repeats, S, ...] by each stage's repeat."""

  def select(weight: jax.Array) -> jax.Array:
    if jnp.issubdtype(weight.dtype, jax.dtypes.extended):
      return _gather_max_gradient(weight, repeat)
    return _gather(weight, repeat)

  return jax.tree.map(select, weights)


# The axis of stages is a batch dimension where it is. `jax.vmap` would move it
# to the front, and XLA, which adds the gradient to the sum so far in place,
# makes an invalid scatter of the transposed one for GPUs.
def _gather(weight: jax.Array, repeat: jax.Array) -> jax.Array:
  return jax.lax.gather(
    weight,
    repeat[:, jnp.newaxis],
    jax.lax.GatherDimensionNumbers(
      offset_dims=tuple(range(1, weight.ndim - 1)),
      collapsed_slice_dims=(0,),
      start_index_map=(0,),
      operand_batching_dims=(1,),
      start_indices_batching_dims=(0,),
    ),
    slice_sizes=(1, 1, *weight.shape[2:]),
    indices_are_sorted=True,
    unique_indices=True,
    mode=jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
  )


def _scatter(
  weight: jax.Array, repeat: jax.Array, update: jax.Array
) -> jax.Array:
  """Inverse of `_gather`: writes [S, ...] into [repeats, S, ...]."""
  return jax.lax.scatter(
    weight,
    repeat[:, jnp.newaxis],
    update,
    jax.lax.ScatterDimensionNumbers(
      update_window_dims=tuple(range(1, weight.ndim - 1)),
      inserted_window_dims=(0,),
      scatter_dims_to_operand_dims=(0,),
      operand_batching_dims=(1,),
      scatter_indices_batching_dims=(0,),
    ),
    indices_are_sorted=True,
    unique_indices=True,
    mode=jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
  )


# Weights whose gradients are combined by maximum have flax's extended dtype
# fm32, which JAX cannot gather.
@jax.custom_vjp
def _gather_max_gradient(weight: jax.Array, repeat: jax.Array) -> jax.Array:
  floats = jax.lax.convert_element_type(weight, jnp.float32)
  return jax.lax.convert_element_type(_gather(floats, repeat), weight.dtype)


def _gather_max_gradient_fwd(weight: jax.Array, repeat: jax.Array) -> Any:
  indices = jnp.arange(weight.shape[0])[:, jnp.newaxis]
  return _gather_max_gradient(weight, repeat), indices == repeat


def _gather_max_gradient_bwd(is_selected: jax.Array, grad: jax.Array) -> Any:
  floats = jax.lax.convert_element_type(grad, jnp.float32)
  is_selected = is_selected.reshape(*is_selected.shape, *(1,) * (grad.ndim - 1))
  # -inf is the identity of the maximum.
  floats = jnp.where(is_selected, floats, -jnp.inf)
  return jax.lax.convert_element_type(floats, grad.dtype), None


_gather_max_gradient.defvjp(_gather_max_gradient_fwd, _gather_max_gradient_bwd)
