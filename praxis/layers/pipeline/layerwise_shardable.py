# SPDX-License-Identifier: Apache-2.0
"""Layerwise shardable pipelining: one layer vmapped over an axis of stages.

The axis of stages is sharded over devices, so that each device holds the
weights of one stage. In every iteration of a scan each stage computes one
microbatch, and a shift along the axis, which XLA compiles to a collective
permute, sends the outputs to the next stage.

References: GSPMD, https://arxiv.org/abs/2105.04663, section 3.3; GPipe,
https://arxiv.org/abs/1811.06965.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import quantized_variables
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers.convolutions.convolve import vmapped_filters
from praxis.layers.pipeline import microbatches as microbatches_lib
from praxis.layers.pipeline import schedule as schedule_lib
from praxis.layers.pipeline import stage_buffers

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
NestedJTensor = pytypes.NestedJTensor
Schedule = schedule_lib.Schedule
BroadcastInputs = microbatches_lib.BroadcastInputs

# The carry of the scan: `state`, the outputs of all stages, and with stream_io
# `stream`, the inputs to come and the outputs so far.
Carry = dict[str, NestedJTensor]
# The state of a stage, and the broadcast inputs that move along with it.
Flow = tuple[NestedJTensor, list[pytypes.JTensor]]

_TreeT = TypeVar('_TreeT')

_WEIGHTS = (
  base_layer.PARAMS,
  base_layer.NON_TRAINABLE,
  base_layer.HYPER_PARAMS,
  *base_layer.NON_PAX_VAR_COLLECTION,
)
_OUTPUT_COLLECTIONS = (base_layer.SUMMARIES, base_layer.AUX_LOSS)
_RNGS = (base_layer.PARAMS, base_layer.RANDOM, base_layer.NON_PAX_RNG_KEY)


class LayerwiseShardablePipelined(base_layer.BaseLayer):
  """Applies num_stages copies of a layer in sequence, as a pipeline.

  Each microbatch updates the non-trainable variables of a stage; bubbles do
  not. Decoding is not supported; see
  PipelineCompatibleStackedTransformerRepeated.
  """

  num_stages: int = 1
  # The layer of a stage; output and first input have the same structure.
  single_stage_body: LayerTpl | None = pax_fiddle.template_field(None)
  # Number of microbatches per batch, or examples per microbatch: set one. None
  # for inputs that are split into microbatches already.
  num_microbatches: int | None = None
  microbatch_size: int | None = None
  # Whether each stage has summaries of its own, `<name>.stage<i>`, instead of
  # stacked ones. Auxiliary losses are summed over the stages.
  unpack_summaries: bool = True
  # Whether inputs and outputs are sharded over the stages and streamed to the
  # first and from the last, instead of replicated.
  stream_io: bool = False
  # Whether bubbles compute NaN; shows that no result depends on them.
  polluting_bubbles_with_nan: bool = False
  # Whether the broadcast inputs move along with their microbatch, instead of
  # being gathered by every stage.
  pipeline_broadcast_inputs: bool = False
  # Remat policy of an iteration.
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_ITERATION_INPUT
  )
  # Sharding of the optimizer state along the leading axes of weights.
  optimizer_dims_mapping: pytypes.SplitDimsMapping = None
  # Whether to store the outputs of all iterations in INTERMEDIATES.
  collect_intermediate_outputs: bool = False
  # Whether to accumulate gradients of bfloat16 weights in float32.
  bf16_accum_in_fp32: bool = False
  # Whether stop_gradient excludes bubbles from gradients. Without it their
  # gradients are zero because their outputs are unused, unless they are NaN.
  enable_bubble_grad_skipping: bool = True

  class WeightSharding(base_layer.WeightSharding):
    # The leading axis of stages.
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
    *broadcast_inputs: pytypes.PyTreeOf[pytypes.JTensor] | None,
    **broadcast_kwargs: pytypes.PyTreeOf[pytypes.JTensor] | None,
  ) -> NestedJTensor:
    """Returns the last stage's output for the whole batch.

    Args:
      inputs: of the first stage; arrays with a leading batch axis, or
        [microbatches, examples, ...] like the outputs if neither
        num_microbatches nor microbatch_size is set.
      *broadcast_inputs: passed to all stages; those with a leading batch axis
        are split into microbatches.
      **broadcast_kwargs: likewise.
    """
    inputs = self._cast_to_fprop_dtype(inputs)
    size = jax.tree.leaves(inputs)[0].shape[0]
    is_split = self.num_microbatches is None and self.microbatch_size is None
    num_microbatches = size
    if not is_split:
      num_microbatches = microbatches_lib.count_microbatches(
        size, self.num_microbatches, self.microbatch_size
      )
    schedule = self._checked_schedule(num_microbatches)
    broadcast = BroadcastInputs.split(
      broadcast_inputs,
      broadcast_kwargs,
      num_microbatches,
      None if is_split else size,
      self._num_streams(),
    )
    microbatches = inputs
    if not is_split:
      microbatches = microbatches_lib.split_batch(
        inputs, num_microbatches, self._num_streams()
      )
    moving = broadcast.batched if self.pipeline_broadcast_inputs else []
    flow = (microbatches, moving)
    if self.is_initializing():
      self._create_weights(flow, broadcast)
      return inputs
    outputs, _ = self._run(schedule, flow, broadcast)
    if is_split:
      return outputs
    return microbatches_lib.join_batch(outputs, self._num_streams())

  def num_valid_iterations(self, num_microbatches: int) -> int:
    """Returns the number of iterations in which a stage has work."""
    return self._schedule(num_microbatches).num_valid_iterations

  def num_total_iterations(self, num_microbatches: int) -> int:
    """Returns the number of iterations, bubbles included."""
    return self._schedule(num_microbatches).num_iterations

  def get_valid_microbatch_mask(
    self, loop_iteration: pytypes.JTensor, num_microbatches: int
  ) -> pytypes.JTensor:
    """Returns whether each stage has work in an iteration."""
    return self._schedule(num_microbatches).is_valid(loop_iteration)

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the stacked quantized weights of all stages."""

    def quantize(body: base_layer.BaseLayer) -> dict[str, Any]:
      return body.quantize_weight()

    stages = self._vmapped(quantize, self.num_stages, self._stage_axis())
    if self._has_weights_per_repeat():
      stages = self._vmapped(stages, self._num_repeats(), None)
    return {c: {'body': tree} for c, tree in stages(self.body).items()}

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns the partition specs of the output of `quantize_weight`."""
    repeats = [None] if self._has_weights_per_repeat() else []
    stacked = quantized_variables.stacked_partition_specs(
      self.body.quantized_partition_specs(),
      [*repeats, self._stage_axis()],
      self.mesh_axis_names,
    )
    return {c: {'body': tree} for c, tree in stacked.items()}

  # Overridden by the circular pipeline.

  def _num_repeats(self) -> int:
    return 1

  def _num_streams(self) -> int:
    """Returns the number of contiguous parts that the batch is split into."""
    return self.num_stages if self.stream_io else 1

  def _has_weights_per_repeat(self) -> bool:
    return False

  def _stage_indices(self) -> dict[str, Any]:
    """Returns the index of each stage in stacked summaries, by name."""
    return {f'stage{i}': i for i in range(self.num_stages)}

  def _weights_of_iteration(
    self, schedule: Schedule, t: pytypes.JTensor, weights: NestedJTensor
  ) -> NestedJTensor:
    """Returns the weights [S, ...] that the stages use at iteration t."""
    return weights

  def _store_weights_of_iteration(
    self,
    schedule: Schedule,
    t: pytypes.JTensor,
    weights: NestedJTensor,
    updates: NestedJTensor,
  ) -> NestedJTensor:
    """Returns `weights` with the values [S, ...] of the stages at t."""
    return updates

  def _carries_inputs(self) -> bool:
    """Returns whether the carry has the inputs, instead of the scan's xs."""
    return self.stream_io

  # The scan over iterations.

  def _run(
    self, schedule: Schedule, flow: Flow, broadcast: BroadcastInputs
  ) -> Flow:
    """Returns the outputs of all microbatches."""
    iterations = jnp.arange(schedule.num_iterations)
    xs = {'t': iterations}
    carry = self._initial_carry(schedule, flow)
    if not self._carries_inputs():
      microbatch = jnp.minimum(iterations, schedule.num_microbatches - 1)
      xs['inputs'] = jax.tree.map(lambda x: x[microbatch], flow)
    carry, ys = self._scan(schedule, broadcast)(self.body, carry, xs)
    if self.collect_intermediate_outputs:
      self.sow(base_layer.INTERMEDIATES, 'stage_outputs', ys.pop('all'))
    return self._outputs(schedule, carry, ys)

  def _scan(
    self, schedule: Schedule, broadcast: BroadcastInputs
  ) -> Callable[..., Any]:
    """Returns the lifted function (body, carry, xs) -> (carry, ys)."""
    stages = checkpoint_policy_lib.remat_in_scan(
      self, self._stages(schedule, broadcast), self.checkpoint_policy
    )

    def iteration(body: nn.Module, carry: Carry, xs: Any) -> Any:
      carry, first_input = self._read_input(schedule, carry, xs)
      inputs = stage_buffers.shift(carry['state'])
      inputs = stage_buffers.set_stage(inputs, 0, first_input)
      outputs = self._shard_stages(
        stages(body, xs['t'], self._shard_stages(inputs))
      )
      return self._write_output(schedule, carry, outputs, xs['t'])

    scan = nn.scan(
      iteration,
      variable_broadcast=self._read_collections(),
      variable_carry=self._updated_collections(),
      variable_axes={
        c: 0 for c in (*_OUTPUT_COLLECTIONS, base_layer.INTERMEDIATES)
      },
      split_rngs={name: name != base_layer.PARAMS for name in _RNGS},
      length=schedule.num_iterations,
      check_constancy_invariants=False,
    )
    mutable = [c for c in _OUTPUT_COLLECTIONS if self.is_mutable_collection(c)]
    if mutable:
      scan = self._average_outputs(scan, mutable, schedule)
    if not self.bf16_accum_in_fp32:
      return scan
    return nn.map_variables(
      scan, self._read_collections(), trans_in_fn=_widen_bfloat16
    )

  def _average_outputs(
    self,
    scan: Callable[..., Any],
    collections: list[str],
    schedule: Schedule,
  ) -> Callable[..., Any]:
    """Averages summaries and losses of a scan over its valid iterations.

    Losses are added to those of earlier calls.
    """
    previous = {}

    def clear(trees: Any) -> Any:
      previous.update(trees.get(base_layer.AUX_LOSS, {}))
      return {name: {} for name in trees}

    def average(trees: Any) -> Any:
      means = jax.tree.map(lambda x: _mean_by_layer(x, schedule), trees)
      if losses := means.get(base_layer.AUX_LOSS):
        losses = jax.tree.map(jnp.sum, losses)
        if previous:
          losses = jax.tree.map(jnp.add, losses, previous)
        means[base_layer.AUX_LOSS] = losses
      if summaries := means.get(base_layer.SUMMARIES):
        if not self._has_weights_per_repeat():
          summaries = jax.tree.map(lambda x: jnp.mean(x, axis=0), summaries)
        if self.unpack_summaries:
          summaries = _split_summaries(summaries, self._stage_indices())
        means[base_layer.SUMMARIES] = summaries
      return means

    return nn.map_variables(
      scan,
      collections,
      trans_in_fn=clear,
      trans_out_fn=average,
      mutable=True,
    )

  def _initial_carry(self, schedule: Schedule, flow: NestedJTensor) -> Carry:
    num_stages = schedule.num_stages
    state = jax.tree.map(
      lambda x: jnp.zeros((num_stages, *x.shape[1:]), x.dtype), flow
    )
    carry = {'state': self._shard_stages(state)}
    if self.stream_io:
      num_slots = schedule.num_microbatches // num_stages
      stream = jax.tree.map(
        lambda x: x.reshape(num_stages, num_slots, *x.shape[1:]), flow
      )
      carry['stream'] = self._shard_stages(stream)
    return carry

  def _read_input(
    self, schedule: Schedule, carry: Carry, xs: Any
  ) -> tuple[Carry, NestedJTensor]:
    """Returns the carry, and the first stage's input [1 or S, ...]."""
    if not self.stream_io:
      return carry, jax.tree.map(lambda x: x[jnp.newaxis], xs['inputs'])
    slot = xs['t'] % (schedule.num_microbatches // schedule.num_stages)
    return carry, stage_buffers.read_slot(carry['stream'], slot)

  def _write_output(
    self,
    schedule: Schedule,
    carry: Carry,
    outputs: Flow,
    t: pytypes.JTensor,
  ) -> tuple[Carry, dict[str, NestedJTensor]]:
    """Stores the outputs; returns the carry and ys of the scan."""
    carry = {**carry, 'state': outputs}
    ys = {'all': outputs[0]} if self.collect_intermediate_outputs else {}
    if self.stream_io:
      slot = t % (schedule.num_microbatches // schedule.num_stages)
      row = stage_buffers.read_slot(carry['stream'], slot)
      row = stage_buffers.rotate(row, -1)
      row = stage_buffers.set_stage(row, schedule.num_stages - 1, outputs)
      carry['stream'] = stage_buffers.write_slot(carry['stream'], slot, row)
    elif not self._carries_inputs():
      ys['last'] = jax.tree.map(lambda x: x[-1], outputs)
    return carry, ys

  def _outputs(self, schedule: Schedule, carry: Carry, ys: Any) -> Any:
    """Returns the outputs of all microbatches after the last iteration."""
    if self.stream_io:
      return stage_buffers.read_stream(carry['stream'], schedule.num_stages - 1)
    bubbles = schedule.num_stages - 1
    return jax.tree.map(lambda y: y[bubbles:], ys['last'])

  # The stages.

  def _stages(
    self, schedule: Schedule, broadcast: BroadcastInputs
  ) -> Callable[..., Any]:
    """Returns the function (body, t, inputs) -> outputs of all stages."""
    stages = self._vmapped_stages(broadcast)
    dtypes = self._weight_dtypes() if self.bf16_accum_in_fp32 else None

    def apply(body: nn.Module, t: Any, inputs: Any) -> Any:
      inputs = jax.tree.map(
        lambda x: checkpoint_name(x, 'iteration_input'), inputs
      )
      is_valid = schedule.is_valid(t)

      def weights_of_iteration(weights: NestedJTensor) -> NestedJTensor:
        if self.bf16_accum_in_fp32:
          weights = jax.tree.map(lambda x, d: x.astype(d), weights, dtypes)
        weights = self._weights_of_iteration(schedule, t, weights)
        return self._stop_bubble_gradients(is_valid, weights)

      gathered = []
      if not self.pipeline_broadcast_inputs:
        gathered = self._shard_stages(broadcast.gather(schedule.microbatch(t)))
      mapped = nn.map_variables(
        self._with_updates(stages, schedule, t),
        self._read_collections(),
        trans_in_fn=weights_of_iteration,
      )
      inputs = self._stop_bubble_gradients(is_valid, inputs)
      if self.polluting_bubbles_with_nan:
        nans = stage_buffers.nans_like(inputs)
        inputs = stage_buffers.select(is_valid, inputs, nans)
      ends_step = schedule.is_last(t, repeat=self._has_weights_per_repeat())
      return mapped(body, inputs, gathered, ends_step)

    return apply

  def _with_updates(
    self, stages: Callable[..., Any], schedule: Schedule, t: pytypes.JTensor
  ) -> Callable[..., Any]:
    """Stores the updates of variables by the stages that have work at t."""
    collections = self._updated_collections()
    if not collections:
      return stages
    is_valid = schedule.is_valid(t)
    previous = {}

    def read(variables: Any) -> Any:
      previous.update(variables)
      return self._weights_of_iteration(schedule, t, variables)

    def write(variables: Any) -> Any:
      old = self._weights_of_iteration(schedule, t, dict(previous))
      new = jax.tree.map(lambda x, y: x.astype(y.dtype), variables, old)
      new = stage_buffers.select(is_valid, new, old)
      return self._store_weights_of_iteration(schedule, t, dict(previous), new)

    return nn.map_variables(
      stages, collections, trans_in_fn=read, trans_out_fn=write, mutable=True
    )

  def _updated_collections(self) -> list[str]:
    is_mutable = self.is_mutable_collection(base_layer.NON_TRAINABLE)
    return [base_layer.NON_TRAINABLE] if is_mutable else []

  def _read_collections(self) -> list[str]:
    updated = self._updated_collections()
    return [name for name in _WEIGHTS if name not in updated]

  def _weight_dtypes(self) -> Any:
    """Returns the dtypes of the weights that stages read, by collection."""
    weights = {
      name: tree
      for name, tree in self.body.variables.items()
      if name in self._read_collections()
    }
    return jax.tree.map(lambda x: x.dtype, weights)

  def _vmapped_stages(self, broadcast: BroadcastInputs) -> Callable[..., Any]:
    def stage(
      body: nn.Module, flow: Any, gathered: Any, ends_step: pytypes.JTensor
    ) -> Any:
      inputs, moving = flow
      args, kwargs = broadcast.join(moving or gathered)
      context = base_layer.cur_jax_context().hparams.clone()
      context.ends_step = ends_step
      new_context = base_layer.JaxContext.new_context
      with vmapped_filters(), new_context(hparams=context):
        return body(inputs, *args, **kwargs), moving

    return self._vmapped(stage, self.num_stages, self._stage_axis())

  def _vmapped(
    self, fn: Callable[..., Any], size: int, mesh_axis: Any
  ) -> Callable[..., Any]:
    """Maps over a leading axis of inputs and of variables."""
    collections = (*_WEIGHTS, *_OUTPUT_COLLECTIONS, base_layer.INTERMEDIATES)
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
    self, flow: NestedJTensor, broadcast: BroadcastInputs
  ) -> None:
    """Creates the variables, by running all stages on the first microbatch."""
    first = jax.tree.map(lambda x: x[:1], flow)
    inputs = jax.tree.map(
      lambda x: jnp.broadcast_to(x, (self.num_stages, *x.shape[1:])), first
    )
    gathered = []
    if not self.pipeline_broadcast_inputs:
      gathered = broadcast.gather(jnp.zeros((self.num_stages,), jnp.int32))
    stages = self._vmapped_stages(broadcast)
    args = inputs, gathered, jnp.ones((self.num_stages,), jnp.bool_)
    if not self._has_weights_per_repeat():
      stages(self.body, *args)
      return
    repeats = self._num_repeats()
    copies = jax.tree.map(
      lambda x: jnp.broadcast_to(x, (repeats, *x.shape)), args
    )
    self._vmapped(stages, repeats, None)(self.body, *copies)

  def _stop_bubble_gradients(
    self, is_valid: pytypes.JTensor, tree: NestedJTensor
  ) -> NestedJTensor:
    """Returns the tree, without gradients from bubbles."""
    if not self.enable_bubble_grad_skipping:
      return tree
    constant = jax.lax.stop_gradient(tree)
    return stage_buffers.select(is_valid, tree, constant)

  def _stage_axis(self) -> Any:
    """Returns the mesh axes of the stages, None if they are not sharded."""
    mapping = self.weight_split_dims_mapping.stages
    axis = mapping[0] if mapping else None
    return None if axis == -1 else axis

  def _shard_stages(self, tree: _TreeT) -> _TreeT:
    """Shards the axis of stages; leaves other dimensions to the compiler."""
    axis = self._stage_axis()
    if axis is None:
      return tree

    def shard(x: jax.Array) -> jax.Array:
      mapping = [axis, *[None] * (x.ndim - 1)]
      other_dims = range(1, x.ndim)
      return base_layer.maybe_shard(
        x, mapping, self.mesh_axis_names, other_dims
      )

    return jax.tree.map(shard, tree)

  def _checked_schedule(self, num_microbatches: int) -> Schedule:
    if self._num_repeats() > 1 and num_microbatches < self.num_stages:
      raise ValueError(
        f'a circular pipeline needs at least num_stages={self.num_stages} '
        f'microbatches, got {num_microbatches}; raise num_microbatches'
      )
    if self.stream_io and num_microbatches % self.num_stages:
      raise ValueError(
        'the number of microbatches must be a multiple of num_stages='
        f'{self.num_stages} with stream_io=True, got {num_microbatches}'
      )
    return self._schedule(num_microbatches)

  def _schedule(self, num_microbatches: int) -> Schedule:
    return Schedule(
      num_stages=self.num_stages,
      num_microbatches=num_microbatches,
      repeats=self._num_repeats(),
    )


def _widen_bfloat16(tree: NestedJTensor) -> NestedJTensor:
  """Casts bfloat16 arrays to float32."""

  def widen(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x

  return jax.tree.map(widen, tree)


def _split_summaries(tree: Any, names: Mapping[str, Any]) -> Any:
  """Returns summaries `<key>.<name>`, the values at an index of each name.

  Args:
    tree: nested dicts of stacked summaries.
    names: indices into the leading axes by name.
  """
  split = {}
  for key, value in tree.items():
    if isinstance(value, Mapping):
      split[key] = _split_summaries(value, names)
      continue
    summary_type = base_layer.get_summary_type_from_key(key)
    suffix = base_layer.get_summary_type_suffix(summary_type)
    key = base_layer.trim_summary_type_from_key(key)
    for name, index in names.items():
      at_index = jax.tree.map(lambda x, index=index: x[index], value)
      split[f'{key}.{name}{suffix}'] = at_index
  return split


def _mean_by_layer(values: jax.Array, schedule: Schedule) -> jax.Array:
  """Returns [repeats, S, ...] from values [iterations, S, ...]."""
  t = jnp.arange(schedule.num_iterations)
  is_valid, repeat = schedule.is_valid(t), schedule.repeat(t)
  expand = (..., *[jnp.newaxis] * (values.ndim - 2))
  means = [
    jnp.where((is_valid & (repeat == r))[expand], values, 0).sum(0)
    / schedule.num_microbatches
    for r in range(schedule.repeats)
  ]
  return jnp.stack(means)
