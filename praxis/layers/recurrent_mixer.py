# SPDX-License-Identifier: Apache-2.0
"""Layers that replace self-attention by a recurrence over time.

Projections of the input pass a short causal convolution. A head has a state of
constant size, zero at the start of a segment; see ssm/matrix_states.py.

Shapes: B batch, T steps, L decoding steps, D model, K heads of queries and
keys, N heads of values, a multiple of K, H head dimension of queries and keys,
V that of values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import attentions, linears, normalizations
from praxis.layers.attentions import attention_core, masks, segments
from praxis.layers.ssm import matrix_states

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
SplitDimsMapping = pytypes.SplitDimsMapping
template_field = pax_fiddle.template_field


class RecurrentMixer(base_layer.BaseLayer):
  """Replaces self-attention of a Transformer; base of causal recurrences."""

  # Dimension of the inputs and the outputs.
  input_dim: int = 0
  # Dimension of all heads together, if no dimension of a head is set.
  hidden_dim: int = 0
  # Heads and their dimension where the next fields are None.
  num_heads: int = 1
  dim_per_head: int | None = None
  # Heads of queries and keys, and of values; consecutive heads of values share
  # one of keys.
  num_key_heads: int | None = None
  num_value_heads: int | None = None
  key_head_dim: int | None = None
  value_head_dim: int | None = None
  # Number of steps that the convolution covers, the current one included.
  conv_kernel_size: int = 4
  # Number of steps that are computed together.
  chunk_size: int = 64
  # Accepted and ignored: there are no probabilities of attention.
  atten_dropout_prob: float = 0.0
  # Whether a forward pass may store the state for decoding.
  decode_cache: bool = True
  # The projections to and from heads, and those to a number per head.
  proj_tpl: LayerTpl = template_field(attentions.AttentionProjection)
  gate_tpl: LayerTpl = template_field(linears.Linear)
  conv_tpl: LayerTpl = template_field(attentions.CausalDepthwiseConv1D)
  # The norm of the outputs.
  norm_tpl: LayerTpl = template_field(normalizations.RmsNorm)

  # Whether it takes segments instead of the array of a mask.
  takes_segments = True
  # The variables with a number for each head of values: logarithms of decay
  # rates, changes of time steps, and others.
  _head_scalars: ClassVar[Mapping[str, base_layer.WeightInit]] = {}

  class WeightSharding(base_layer.WeightSharding):
    # Shardings of projections [D, N, H], and of convolutions [N, H].
    proj: SplitDimsMapping = None
    dconv: SplitDimsMapping = None

  class ActivationSharding(base_layer.ActivationSharding):
    # Shardings of tensors with heads, and of the output.
    blnh: SplitDimsMapping = None
    bld: SplitDimsMapping = None

  def setup(self) -> None:
    self._check_fields()
    for name, heads in self._heads().items():
      self.create_child(name, self._projection(*heads))
      conv = self.conv_tpl.clone().set(
        kernel_size=self.conv_kernel_size, hidden_dims=list(heads)
      )
      conv.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.dconv
      self.create_child(f'{name}_conv', conv)
    heads = self._heads()['value']
    self.create_child('output_gate', self._projection(*heads))
    post = self._projection(*heads).set(is_output_projection=True)
    self.create_child('post', post)
    self.create_child('decay', self._head_gate())
    for name, init in self._head_scalars.items():
      self._create_head_scalar(name, heads[0], init)
    self.create_child('norm', self._output_norm(heads))

  def __call__(
    self,
    query_vec: Float[Array, 'B T D'],
    key_vec: Float[Array, 'B T D'],
    value_vec: Float[Array, 'B T D'],
    atten_mask: Float[Array, '#B #N #T T'] | segments.SegmentMask,
    query_segment_pos: Int[Array, '#B T'] | None = None,
    key_segment_pos: Int[Array, '#B T'] | None = None,
  ) -> tuple[Float[Array, 'B T D'], None]:
    """Returns the outputs, and None for the probabilities of attention.

    A step starts a segment if the mask hides the step before it.

    Args:
      query_vec: inputs.
      key_vec: the same array.
      value_vec: the same array.
      atten_mask: additive (see masks.py), or segments.
      query_segment_pos: position of each step in its segment; its index when
        None. Only for decoding, which continues after the last one.
      key_segment_pos: ignored.

    Raises:
      ValueError: the inputs differ, or the mask is not causal.
    """
    self._check_call(query_vec, (key_vec, value_vec), atten_mask)
    batch, length = query_vec.shape[:2]
    is_start = _segment_starts(atten_mask, batch, length)
    index = jnp.arange(length)
    pos = index - jax.lax.cummax(jnp.where(is_start, index, 0), axis=1)
    steps = self._steps(query_vec, pos, {})
    is_stored = self.decode_cache and self.is_mutable_collection(
      base_layer.DECODE_CACHE
    )
    # The stored state is that before the last step.
    end = length - 1 if is_stored else length
    encoded, state = steps.span(0, end).chunked(
      steps.zero_state(), self.chunk_size
    )
    if is_stored:
      last, state, update = steps.span(end).recurrent(state, steps.no_update())
      encoded = jnp.concatenate([encoded, last], axis=1)
      pos = masks.step_positions(query_segment_pos, 0, length)
      self._store(state, update, jnp.broadcast_to(pos[:, -1], (batch,)))
    split = self.activation_split_dims_mapping.bld
    return self._outputs(encoded, query_vec, split), None

  def extend_step(
    self,
    query_vec: Float[Array, 'B *L D'],
    *,
    atten_mask: Float[Array, '...'] | None = None,
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B *L'] | None,
  ) -> Float[Array, 'B *L D']:
    """Returns the outputs of one or several decoding steps.

    A first step at the position of the last one replaces it: decoders read the
    last token of a prompt again.

    Args:
      query_vec: input of one step, or of several with a time axis.
      atten_mask: ignored.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; its index when None. A
        segment starts at a position that is not positive.

    Raises:
      ValueError: the decode state is of another batch.
    """
    is_single = query_vec.ndim == 2
    if is_single:
      query_vec = query_vec[:, jnp.newaxis]
    batch, length = query_vec.shape[:2]
    pos = masks.step_positions(segment_pos, time_step, length)
    pos = jnp.broadcast_to(pos, (batch, length))
    is_repeated = pos[:, 0] == self._stored('position', batch)
    histories = {}
    for name in self._heads():
      window = self._stored(f'{name}_window', batch)
      is_last = is_repeated[:, jnp.newaxis, jnp.newaxis, jnp.newaxis]
      histories[name] = jnp.where(is_last, window[:, :-1], window[:, 1:])
    update = matrix_states.Update(
      *(self._stored(x, batch) for x in matrix_states.Update._fields)
    )
    steps = self._steps(query_vec, pos, histories)
    encoded, state, update = steps.recurrent(
      self._stored('state', batch), update.skip(is_repeated)
    )
    self._store(state, update, pos[:, -1])
    split = self.activation_split_dims_mapping.bld
    split = split and [split[0], None, split[2]]
    outputs = self._outputs(encoded, query_vec, split)
    return outputs[:, 0] if is_single else outputs

  # The decode state: of constant size, without a time axis.

  def decoding_state_sequence_length(self) -> int:
    """Returns 0: any number of steps fits."""
    return 0

  def check_decoding(self, *, prefill: bool, sequential: bool) -> None:
    """Checks that the layer supports a way of decoding.

    Args:
      prefill: ignored; a forward pass stores the state.
      sequential: whether steps are in order; see decode_states.

    Raises:
      ValueError: steps are not in order.
    """
    del prefill
    if not sequential:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} has one state for a sequence, not'
        ' for the hypotheses of a flat beam search; use BeamSearchHParams'
      )

  def transform_decode_state(
    self, transform_fn: base_layer.DecodeStateTransformFn
  ) -> None:
    """Replaces each tensor of the state by fn(tensor, batch_dim=0, -1)."""
    for name in self._state_names():
      state = self.get_decode_state(name)
      self.update_decode_state(name, transform_fn(state, 0, -1))

  def lazy_broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Copies the state for every sample; it has no prefix to share.

    Args:
      num_suffix_samples: number of samples of each row.
      suffix_length: ignored.
    """
    repeat = lambda x, *_: jnp.repeat(x, num_suffix_samples, axis=0)
    self.transform_decode_state(repeat)

  def right_align_decode_state_with_prefix(
    self,
    max_prefix_size: int,
    right_align_fn: base_layer.DecodeStateTransformFn,
  ) -> None:
    """Does nothing: the state has no steps to align."""

  def _state_names(self) -> list[str]:
    windows = [f'{name}_window' for name in self._heads()]
    return ['state', 'position', *matrix_states.Update._fields, *windows]

  def _stored(self, name: str, batch: int) -> Array:
    state = self.get_decode_state(name)
    if state.shape[0] != batch:
      raise ValueError(
        f'the inputs of a decoding step must have {state.shape[0]} rows as the'
        f' decode state of {type(self).__name__} {self.name!r}, got {batch};'
        ' repeat its rows with transform_decode_state'
      )
    return state

  def _store(
    self,
    state: matrix_states.State,
    update: matrix_states.Update,
    pos: Int[Array, ' B'],
  ) -> None:
    for name, x in update._asdict().items():
      self.update_decode_state(name, x)
    self.update_decode_state('state', state)
    self.update_decode_state('position', pos)

  # From inputs to the steps of the recurrence, and from its outputs.

  def _steps(
    self,
    x: Float[Array, 'B T D'],
    pos: Int[Array, 'B T'],
    histories: Mapping[str, Float[Array, 'B C _ _']],
  ) -> matrix_states.Steps:
    """Returns the steps; a position that is not positive starts a segment.

    Args:
      x: the inputs.
      pos: position of each step in its segment.
      histories: the inputs of the convolutions for the steps before; {} for
        none.
    """
    raise NotImplementedError(f'{type(self).__name__} defines no _steps')

  def _gated_norm(
    self, encoded: Float[Array, 'B T N V'], gate: Float[Array, 'B T N V']
  ) -> Float[Array, 'B T N V']:
    """Returns normalized heads, multiplied by the activation of a gate."""
    raise NotImplementedError(f'{type(self).__name__} defines no _gated_norm')

  def _time_steps(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T N']:
    """Returns the sizes of time steps, in float32."""
    time_steps = self.decay(x).astype(jnp.float32)
    time_steps += self.get_var('dt_bias').astype(jnp.float32)
    return jax.nn.softplus(time_steps)

  def _log_decays(
    self, time_steps: Float[Array, 'B T N']
  ) -> Float[Array, 'B T N']:
    """Returns the logarithms of decays."""
    return -jnp.exp(self.get_var('a_log').astype(jnp.float32)) * time_steps

  def _convolved(
    self,
    x: Float[Array, 'B T D'],
    pos: Int[Array, 'B T'],
    histories: Mapping[str, Float[Array, 'B C _ _']],
  ) -> list[Float[Array, 'B T _ _']]:
    """Returns queries, keys and values, in float32.

    Args:
      x: see `_steps`.
      pos: see `_steps`.
      histories: see `_steps`.
    """
    return [
      self._convolve(name, x, pos, histories.get(name))
      for name in self._heads()
    ]

  def _convolve(
    self,
    name: str,
    x: Float[Array, 'B T D'],
    pos: Int[Array, 'B T'],
    history: Float[Array, 'B C _ _'] | None,
  ) -> Float[Array, 'B T _ _']:
    """Returns heads after their convolution, and stores its last inputs."""
    heads = self._shard_heads(getattr(self, name)(x))
    heads = checkpoint_name(heads, f'{name}_proj')
    num_earlier = self.conv_kernel_size - 1
    if history is None:
      shape = heads.shape[0], num_earlier, *heads.shape[2:]
      history = jnp.zeros(shape, heads.dtype)
    heads = jnp.concatenate([history, heads], axis=1)
    window = heads[:, heads.shape[1] - self.conv_kernel_size :]
    if self.decode_cache:
      self.update_decode_state(f'{name}_window', window)
    # The outputs of earlier steps are dropped: any position will do.
    pos = jnp.pad(pos, [(0, 0), (num_earlier, 0)])
    outputs = getattr(self, f'{name}_conv')(heads, 1, pos)[:, num_earlier:]
    return jax.nn.silu(self._shard_heads(outputs).astype(jnp.float32))

  def _outputs(
    self,
    encoded: Float[Array, 'B T N V'],
    x: Float[Array, 'B T D'],
    split: SplitDimsMapping,
  ) -> Float[Array, 'B T D']:
    """Returns the output projection of normalized, gated heads."""
    gate = self._shard_heads(self.output_gate(x)).astype(jnp.float32)
    encoded = checkpoint_name(self._shard_heads(encoded), 'context')
    gated = self._gated_norm(encoded, gate)
    outputs = base_layer.maybe_shard(
      self.post(gated.astype(self.fprop_dtype)), split, self.mesh_axis_names
    )
    return checkpoint_name(outputs, 'out_proj')

  def _shard_heads(self, x: Float[Array, 'B T N H']) -> Float[Array, 'B T N H']:
    """Shards heads, not the time: the state passes from step to step."""
    split = self.activation_split_dims_mapping.blnh
    split = split and [split[0], None, *split[2:]]
    return base_layer.maybe_shard(x, split, self.mesh_axis_names)

  # Fields and variables.

  def _heads(self) -> dict[str, tuple[int, int]]:
    """Returns numbers of heads and their dimensions, by projection."""
    dim = self.dim_per_head or self.hidden_dim // self.num_heads
    keys = (self.num_key_heads or self.num_heads, self.key_head_dim or dim)
    values = (
      self.num_value_heads or self.num_heads,
      self.value_head_dim or dim,
    )
    return dict(
      zip(attention_core.INPUT_NAMES, (keys, keys, values), strict=True)
    )

  def _projection(self, num_heads: int, dim_per_head: int) -> LayerTpl:
    proj = self.proj_tpl.clone().set(
      input_dim=self.input_dim,
      num_heads=num_heads,
      dim_per_head=dim_per_head,
      use_bias=False,
    )
    proj.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.proj
    return proj

  def _head_gate(self) -> LayerTpl:
    """Returns a projection to a number for each head of values."""
    gate = self.gate_tpl.clone().set(
      input_dims=self.input_dim, output_dims=self._heads()['value'][0]
    )
    split = self.weight_split_dims_mapping.proj
    gate.weight_split_dims_mapping.wt = split and split[:2]
    return gate

  def _output_norm(self, heads: tuple[int, int]) -> LayerTpl:
    """Returns the norm of heads.

    Args:
      heads: their number and dimension.
    """
    raise NotImplementedError(f'{type(self).__name__} defines no _output_norm')

  def _create_head_scalar(
    self, name: str, num_heads: int, init: base_layer.WeightInit
  ) -> None:
    split = self.weight_split_dims_mapping.proj
    self.create_variable(
      name,
      base_layer.WeightHParams(
        shape=[num_heads],
        init=init,
        # Rates are exponentials.
        dtype=jnp.float32,
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=split and [split[1]],
        collections=[base_layer.WeightHParamsCollection.SKIP_LP_REGULARIZATION],
      ),
    )

  def _check_fields(self) -> None:
    self._check_positive(
      'input_dim', 'num_heads', 'conv_kernel_size', 'chunk_size'
    )
    heads = self._heads()
    if min(map(min, heads.values())) < 1:
      raise ValueError(
        'the numbers of heads and their dimensions must be at least 1, got'
        f' {heads}; set dim_per_head, or key_head_dim and value_head_dim'
      )
    if heads['value'][0] % heads['key'][0]:
      raise ValueError(
        f'num_key_heads must divide num_value_heads={heads["value"][0]}, got'
        f' {heads["key"][0]}; each head of keys is shared by as many of values'
      )

  def _check_call(
    self,
    x: Float[Array, 'B T D'],
    others: tuple[Array, Array],
    mask: Array | segments.SegmentMask,
  ) -> None:
    if any(y is not x for y in others) and not self.is_initializing():
      raise ValueError(
        'query_vec, key_vec and value_vec must be the same array, got others;'
        ' set cross_atten_tpl for cross attention'
      )
    attention_core.check_inputs((x, *others), [self.input_dim] * 3)
    batch, length = x.shape[:2]
    num_heads = mask.shape[1] if mask.ndim == 4 else 1
    attention_core.check_mask(mask, batch, num_heads, length, length)
    if isinstance(mask, segments.SegmentMask) and not mask.is_causal:
      raise ValueError(
        f'the mask of {type(self).__name__} {self.name!r} must be causal, got'
        ' one that shows later steps; use model_type=CAUSAL'
      )


def _segment_starts(
  mask: Float[Array, '#B #N #T T'] | segments.SegmentMask,
  batch: int,
  length: int,
) -> Bool[Array, 'B T']:
  """Returns for each step whether the mask hides the one before it."""
  if isinstance(mask, segments.SegmentMask):
    ids = mask.for_batch(batch).segment_ids
    is_hidden = ids[:, 1:] != ids[:, :-1]
  else:
    square = jnp.broadcast_to(mask[:, 0], (batch, length, length))
    previous = jnp.diagonal(square, offset=-1, axis1=1, axis2=2)
    is_hidden = masks.is_masked(previous)
  return jnp.pad(is_hidden, [(0, 0), (1, 0)], constant_values=True)
