# SPDX-License-Identifier: Apache-2.0
"""A pipeline over devices: stages side by side, microbatches passing through.

All stages are one layer mapped over a leading axis of its weights. When that
axis is split over devices, each device holds one stage, and what a stage gives
to the next is a message to a neighbour; the compiler finds it in the shift of
an array by one along that axis.

References: GSPMD, https://arxiv.org/abs/2105.04663, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers.pipeline import (
  arguments,
  reports,
  stage_buffers,
  stage_weights,
)
from praxis.layers.pipeline import schedule as schedule_lib

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
NestedJTensor = pytypes.NestedJTensor
Schedule = schedule_lib.Schedule

# What the loop carries from one iteration to the next, by name:
# state (the outputs of all stages) and, with stream_io, stream (inputs that
# wait and outputs that are done).
_Carry = dict[str, Any]

_WEIGHTS = (
  base_layer.PARAMS,
  base_layer.NON_TRAINABLE,
  base_layer.HYPER_PARAMS,
  *base_layer.NON_PAX_VAR_COLLECTION,
)
_REPORTS = (base_layer.SUMMARIES, base_layer.AUX_LOSS)
_RNGS = (base_layer.PARAMS, base_layer.RANDOM, base_layer.NON_PAX_RNG_KEY)


class LayerwiseShardablePipelined(base_layer.BaseLayer):
  """Runs num_stages copies of a layer one after the other, as a pipeline.

  Non-trainable variables are read and not updated in a pipeline, and there is
  no decoding; see PipelineCompatibleStackedTransformerRepeated.
  """

  num_stages: int = 1
  # The layer; its output must look like its first input.
  single_stage_body: LayerTpl | None = pax_fiddle.template_field(None)
  # Into how many parts a batch is split, or how large they are: set one.
  num_microbatches: int | None = None
  microbatch_size: int | None = None
  # Whether each stage reports summaries and auxiliary losses under its own
  # name, `layer_0` and on, rather than all of them stacked.
  unpack_summaries: bool = True
  # Whether inputs and outputs are spread over the stages, and move on each time
  # the first stage takes an input, rather than lie on every device.
  stream_io: bool = False
  # Whether bubbles compute with nan, to show that nothing depends on them.
  polluting_bubbles_with_nan: bool = False
  # Whether further inputs move with their microbatch, rather than be looked up
  # by every stage.
  pipeline_broadcast_inputs: bool = False
  # What the backward pass finds in memory, beside each iteration's input.
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_ITERATION_INPUT
  )
  # How the optimizer splits the leading axes of its state.
  optimizer_dims_mapping: pytypes.SplitDimsMapping = None
  # Whether the outputs of all stages go to the collection INTERMEDIATES.
  collect_intermediate_outputs: bool = False
  # Whether gradients of bfloat16 weights are summed up in float32.
  bf16_accum_in_fp32: bool = False
  # Whether bubbles are kept from the gradients by a selection, rather than by
  # the zeros that come from outputs nobody uses.
  enable_bubble_grad_skipping: bool = True

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # Of the leading axis of stages.
    stages: pytypes.SplitDimsMapping = (None,)

  def setup(self) -> None:
    if self.single_stage_body is None or self.num_stages < 1:
      raise ValueError(
        f'{type(self).__name__} needs single_stage_body and num_stages >= 1, '
        f'got num_stages={self.num_stages}'
      )
    self.create_child('body', self.single_stage_body.clone())

  def __call__(
    self,
    inputs: NestedJTensor,
    *broadcast_inputs: NestedJTensor | None,
    **broadcast_kwargs: NestedJTensor | None,
  ) -> NestedJTensor:
    """Returns the last stage's output for the whole batch.

    Args:
      inputs: of the first stage; arrays with a leading batch axis.
      *broadcast_inputs: passed to all stages; those with the batch in front are
        split into microbatches, too.
      **broadcast_kwargs: likewise.
    """
    inputs = self._cast_to_fprop_dtype(inputs)
    batch = jax.tree.leaves(inputs)[0].shape[0]
    schedule = self._schedule(batch)
    args = arguments.PipelineArguments.split(
      broadcast_inputs, broadcast_kwargs, batch, schedule.num_microbatches
    )
    microbatches = schedule_lib.split_batch(inputs, schedule.num_microbatches)
    moving = args.leaves if self.pipeline_broadcast_inputs else []
    flow = (microbatches, moving)
    if self.is_initializing():
      self._create_weights(flow, args)
      return inputs
    outputs, _ = self._run(schedule, flow, args)
    return schedule_lib.join_batch(outputs)

  def num_valid_iterations(self, num_microbatches: int) -> int:
    """Returns for how many iterations each stage has work."""
    return self._schedule_of(num_microbatches).num_valid_iterations

  def num_total_iterations(self, num_microbatches: int) -> int:
    """Returns how many iterations there are, bubbles included."""
    return self._schedule_of(num_microbatches).num_iterations

  def get_valid_microbatch_mask(
    self, loop_iteration: pytypes.JTensor, num_microbatches: int
  ) -> pytypes.JTensor:
    """Returns for each stage whether it has work in an iteration."""
    return self._schedule_of(num_microbatches).valid(loop_iteration)

  # What a circular pipeline does otherwise.

  def _num_repeats(self) -> int:
    return 1

  def _has_weights_per_repeat(self) -> bool:
    return False

  def _keeps_inputs(self) -> bool:
    """Whether inputs are in the carry and not fed one by one."""
    return self.stream_io

  # The loop.

  def _run(
    self, schedule: Schedule, flow: Any, args: arguments.PipelineArguments
  ) -> Any:
    """Returns the outputs of all microbatches."""
    iterations = jnp.arange(schedule.num_iterations)
    xs = {'t': iterations}
    carry = self._first_carry(schedule, flow)
    if not self._keeps_inputs():
      last = schedule.num_microbatches - 1
      order = jnp.minimum(iterations, last)
      xs['first'] = jax.tree.map(lambda x: x[order], flow)
    carry, ys = self._loop(schedule, args)(self.body, carry, xs)
    if self.collect_intermediate_outputs:
      self.sow(base_layer.INTERMEDIATES, 'stage_outputs', ys.pop('all'))
    return self._outputs(schedule, carry, ys)

  def _loop(
    self, schedule: Schedule, args: arguments.PipelineArguments
  ) -> Callable[..., Any]:
    """Returns the lifted function (body, carry, xs) -> (carry, ys)."""
    widened: list[Any] = []
    stages = checkpoint_policy_lib.in_loop(
      self, self._stages(schedule, args, widened), self.checkpoint_policy
    )

    def iteration(body: nn.Module, carry: _Carry, xs: Any) -> Any:
      carry, first = self._take_first(schedule, carry, xs)
      inputs = stage_buffers.put_at_stage(
        stage_buffers.shift(carry['state']), 0, first
      )
      outputs = self._shard(stages(body, xs['t'], self._shard(inputs)))
      return self._give_last(schedule, carry, outputs, xs['t'])

    loop = nn.scan(
      iteration,
      variable_broadcast=list(_WEIGHTS),
      variable_axes={c: 0 for c in (*_REPORTS, base_layer.INTERMEDIATES)},
      split_rngs={name: name != base_layer.PARAMS for name in _RNGS},
      length=schedule.num_iterations,
      check_constancy_invariants=False,
    )
    mutable = [c for c in _REPORTS if self.is_mutable_collection(c)]
    if mutable:
      loop = reports.averaged(loop, mutable, schedule, self.unpack_summaries)

    def widen(weights: Any) -> Any:
      widened.append(weights)
      if self.bf16_accum_in_fp32:
        weights = stage_weights.to_float32(weights)
      return weights

    return nn.map_variables(loop, list(_WEIGHTS), trans_in_fn=widen)

  def _first_carry(self, schedule: Schedule, flow: Any) -> _Carry:
    stages, count = schedule.num_stages, schedule.num_microbatches
    state = jax.tree.map(
      lambda x: jnp.zeros((stages, *x.shape[1:]), x.dtype), flow
    )
    carry = {'state': self._shard(state)}
    if self.stream_io:
      stream = jax.tree.map(
        lambda x: x.reshape(stages, count // stages, *x.shape[1:]), flow
      )
      carry['stream'] = self._shard(stream)
    return carry

  def _take_first(
    self, schedule: Schedule, carry: _Carry, xs: Any
  ) -> tuple[_Carry, Any]:
    """Returns the first stage's input, with an axis of stages in front."""
    if not self.stream_io:
      return carry, jax.tree.map(lambda x: x[jnp.newaxis], xs['first'])
    slot = xs['t'] % (schedule.num_microbatches // schedule.num_stages)
    return carry, stage_buffers.read_slot(carry['stream'], slot)

  def _give_last(
    self, schedule: Schedule, carry: _Carry, outputs: Any, t: pytypes.JTensor
  ) -> tuple[_Carry, Any]:
    """Puts the last stage's output where it belongs; returns carry and ys."""
    carry = {**carry, 'state': outputs}
    ys = {'all': outputs[0]} if self.collect_intermediate_outputs else {}
    if self.stream_io:
      slot = t % (schedule.num_microbatches // schedule.num_stages)
      row = stage_buffers.rotate(
        stage_buffers.read_slot(carry['stream'], slot), -1
      )
      row = stage_buffers.put_at_stage(row, schedule.num_stages - 1, outputs)
      carry['stream'] = stage_buffers.write_slot(carry['stream'], slot, row)
    elif not self._keeps_inputs():
      ys['last'] = jax.tree.map(lambda x: x[-1], outputs)
    return carry, ys

  def _outputs(self, schedule: Schedule, carry: _Carry, ys: Any) -> Any:
    """Returns the outputs of all microbatches, when the loop is over."""
    if self.stream_io:
      return stage_buffers.read_stream(carry['stream'], schedule.num_stages - 1)
    bubbles = schedule.num_stages - 1
    return jax.tree.map(lambda y: y[bubbles:], ys['last'])

  # The stages.

  def _stages(
    self,
    schedule: Schedule,
    args: arguments.PipelineArguments,
    widened: list[Any],
  ) -> Callable[..., Any]:
    """Returns the function (body, t, inputs) -> outputs of all stages."""
    stages = self._vmapped_stages(args)

    def run(body: nn.Module, t: Any, inputs: Any) -> Any:
      inputs = jax.tree.map(
        lambda x: checkpoint_name(x, 'iteration_input'), inputs
      )
      valid = schedule.valid(t)

      def of_iteration(weights: Any) -> Any:
        weights = jax.tree.map(
          lambda x, stored: x.astype(stored.dtype), weights, widened[0]
        )
        if self._has_weights_per_repeat():
          weights = stage_weights.of_repeat(weights, schedule.repeat(t))
        return self._without_bubbles(valid, weights)

      looked_up = []
      if not self.pipeline_broadcast_inputs:
        looked_up = args.of_microbatches(schedule.microbatch(t))
      mapped = nn.map_variables(
        stages, list(_WEIGHTS), trans_in_fn=of_iteration
      )
      inputs = self._without_bubbles(valid, inputs)
      if self.polluting_bubbles_with_nan:
        inputs = stage_buffers.select(
          valid, inputs, stage_buffers.nans_like(inputs)
        )
      return mapped(body, inputs, looked_up)

    return run

  def _vmapped_stages(self, args: arguments.PipelineArguments) -> Any:
    def stage(body: nn.Module, flow: Any, looked_up: Any) -> Any:
      inputs, moving = flow
      args_, kwargs = args.join(moving or looked_up)
      return body(inputs, *args_, **kwargs), moving

    return self._vmapped(stage, self.num_stages, self._stage_axis())

  def _vmapped(
    self, fn: Callable[..., Any], size: int, mesh_axis: Any
  ) -> Callable[..., Any]:
    """Maps over a leading axis of inputs and of variables."""
    collections = (*_WEIGHTS, *_REPORTS, base_layer.INTERMEDIATES)
    return nn.vmap(
      fn,
      variable_axes={collection: 0 for collection in collections},
      split_rngs={name: True for name in _RNGS},
      axis_size=size,
      spmd_axis_name=mesh_axis if self.mesh_axis_names else None,
      metadata_params={
        'x_times': size,
        'prefix_split_dims_mapping': mesh_axis,
        'optimizer_dims_mapping': (
          self.optimizer_dims_mapping and self.optimizer_dims_mapping[-1]
        ),
      },
    )

  def _create_weights(
    self, flow: Any, args: arguments.PipelineArguments
  ) -> None:
    """Runs the stages once, on the first microbatch, to create variables."""
    first = jax.tree.map(lambda x: x[:1], flow)
    of_stages = jax.tree.map(
      lambda x: jnp.broadcast_to(x, (self.num_stages, *x.shape[1:])), first
    )
    zeros = jnp.zeros((self.num_stages,), jnp.int32)
    looked_up = args.of_microbatches(zeros)
    if self.pipeline_broadcast_inputs:
      looked_up = []
    stages = self._vmapped_stages(args)
    if not self._has_weights_per_repeat():
      stages(self.body, of_stages, looked_up)
      return
    repeats = self._num_repeats()
    copies = jax.tree.map(
      lambda x: jnp.broadcast_to(x, (repeats, *x.shape)), (of_stages, looked_up)
    )
    self._vmapped(stages, repeats, None)(self.body, *copies)

  def _without_bubbles(self, valid: pytypes.JTensor, tree: Any) -> Any:
    """Returns the tree; bubbles contribute nothing to its gradient."""
    if not self.enable_bubble_grad_skipping:
      return tree
    return stage_buffers.select(valid, tree, jax.lax.stop_gradient(tree))

  def _stage_axis(self) -> Any:
    stages = self.weight_split_dims_mapping.stages
    axis = stages[0] if stages else None
    return None if axis == -1 else axis

  def _shard(self, tree: Any) -> Any:
    """Splits the leading axis of stages; leaves others to the compiler."""

    def one(x: jax.Array) -> jax.Array:
      mapping = [self._stage_axis(), *[None] * (x.ndim - 1)]
      others = range(1, x.ndim)
      return base_layer.maybe_shard(x, mapping, self.mesh_axis_names, others)

    return tree if self._stage_axis() is None else jax.tree.map(one, tree)

  def _schedule(self, batch: int) -> Schedule:
    count = schedule_lib.count_microbatches(
      batch, self.num_microbatches, self.microbatch_size
    )
    schedule = self._schedule_of(count)
    if self._num_repeats() > 1 and count < self.num_stages:
      raise ValueError(
        f'a circular pipeline needs at least num_stages={self.num_stages} '
        f'microbatches, got {count}; raise num_microbatches'
      )
    if self.stream_io and count % self.num_stages:
      raise ValueError(
        'the number of microbatches must be a multiple of num_stages='
        f'{self.num_stages} with stream_io=True, got {count}'
      )
    return schedule

  def _schedule_of(self, num_microbatches: int) -> Schedule:
    return Schedule(
      num_stages=self.num_stages,
      num_microbatches=num_microbatches,
      repeats=self._num_repeats(),
    )
