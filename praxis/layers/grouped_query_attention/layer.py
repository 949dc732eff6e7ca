# SPDX-License-Identifier: Apache-2.0
"""Attention whose heads share keys and values, in groups.

Shapes: B batch, T queries, S keys and values, L steps, D model, N heads, K
heads of keys and values with N = K · G, H head.

A mask is boolean, True where a position is hidden; an additive mask says the
same, as it is zero where a position is visible.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Shaped

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import multi_query_attention
from praxis.layers.attentions import (
  cache,
  checks,
  groups,
  projections,
  softmax,
)
from praxis.layers.grouped_query_attention import functions

SplitDimsMapping = pytypes.SplitDimsMapping

_Heads = Float[Array, 'B T N H']
_SourceHeads = Float[Array, 'B S K H']
_Mask = Shaped[Array, '#B #N #T S']


class GroupedQueryAttention(cache.CachedAttention):
  """Dot-product attention with fewer heads of keys and values than of queries.

  The probabilities it returns are [B, K, G, T, S].

  References: https://arxiv.org/abs/2305.13245
  """

  # Size of the last dimension of the inputs and of the output.
  input_dim: int = 0
  # Not used: what other attention calls by this name is N · H here.
  hidden_dim: int = 0
  num_heads: int = 1
  # Number of heads of keys and values. One of them has no axis in its weights.
  num_kv_heads: int = 1
  # Size of one head.
  dim_per_head: int = 0
  # Dropout of the attention probabilities.
  atten_dropout_prob: float = 0.0
  # Divides the logits, beside √H.
  atten_temp: float = 1.0
  use_bias: bool = True
  # Logits are kept within ± this number by a tanh; 0 leaves them.
  atten_logit_cap: float = 0.0
  # The timescales of rotary position embedding; none when absent.
  rope_min_max_timescales: tuple[int, int] | None = None

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # Of the queries' and the output's weight, as [D, N, H], and of the keys'
    # and values', as [D, K, H]; the former when absent.
    dnh: SplitDimsMapping = None
    dkh: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    # Of inputs and output, of queries, and of keys and values.
    btd: SplitDimsMapping = None
    btnh: SplitDimsMapping = None
    bskh: SplitDimsMapping = None

  def setup(self) -> None:
    self._check_fields()
    split = self.weight_split_dims_mapping
    self.create_child('query', self._projection(self.num_heads, split.dnh))
    for name in ('key', 'value'):
      source_split = split.dkh or split.dnh
      self.create_child(name, self._projection(self.num_kv_heads, source_split))
    post = self._many_heads(self.num_heads, split.dnh)
    self.create_child('post', post.set(is_output_projection=True))

  def __call__(
    self,
    query_vec: Float[Array, 'B T D'],
    key_vec: Float[Array, 'B S D'],
    value_vec: Float[Array, 'B S D'],
    atten_mask: _Mask,
    query_segment_pos: Int[Array, '#B T'] | None = None,
    key_segment_pos: Int[Array, '#B S'] | None = None,
  ) -> tuple[Float[Array, 'B T D'], Float[Array, 'B K G T S'] | None]:
    """Returns the attended values and the probabilities, after dropout.

    Args:
      query_vec: inputs of the queries.
      key_vec: inputs of the keys.
      value_vec: inputs of the values.
      atten_mask: boolean or additive; True or not zero hides.
      query_segment_pos: position of each query in its segment; its index when
        absent.
      key_segment_pos: likewise of each key.
    """
    inputs = query_vec, key_vec, value_vec
    checks.check_inputs(inputs, [self.input_dim] * 3)
    batch, length = query_vec.shape[:2]
    checks.check_mask(
      atten_mask, batch, self.num_heads, length, key_vec.shape[1]
    )
    query, key, value = self._project(*inputs)
    query = self._maybe_rope(query, query_segment_pos)
    key = self._maybe_rope(key, key_segment_pos)
    self._remember('key_state', key)
    self._remember('value_state', value)
    encoded, probs = self._attend_at(
      query, key, value, atten_mask, query_segment_pos
    )
    return self._post(encoded), probs

  def extend_step(
    self,
    query_vec: Float[Array, 'B *L D'],
    *,
    atten_mask: Shaped[Array, '...'],
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, 'B *L'] | None,
    is_cross_attention: bool = False,
  ) -> Float[Array, 'B *L D']:
    """Returns the attended values for one decoding step, or a run of them.

    Args:
      query_vec: the step's input, or with a time axis those of several steps.
      atten_mask: boolean or additive, [B or 1, 1, S], or [B or 1, 1, L, S] for
        L steps.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; its index when None.
      is_cross_attention: whether keys come from another sequence, whose forward
        pass has left them.
    """
    is_single = query_vec.ndim == 2
    if is_single:
      query_vec = query_vec[:, jnp.newaxis]
      atten_mask = atten_mask[:, :, jnp.newaxis]
    batch, steps = query_vec.shape[:2]
    if segment_pos is None:
      segment_pos = (time_step + jnp.arange(steps))[jnp.newaxis]
    elif segment_pos.ndim == 1:
      segment_pos = segment_pos[:, jnp.newaxis] + jnp.arange(steps)
    query, key, value = self._project(query_vec, query_vec, query_vec)
    query = self._maybe_rope(query, segment_pos)
    if is_cross_attention:
      names = ('key_state', 'value_state')
      key, value = (self.get_decode_state(name) for name in names)
    else:
      key = self._maybe_rope(key, segment_pos)
      key = self.extend_decode_state('key_state', key, time_step)
      value = self.extend_decode_state('value_state', value, time_step)
    # Samples of one example have its keys.
    key, value = (
      jnp.repeat(x, batch // x.shape[0], axis=0) for x in (key, value)
    )
    checks.check_mask(atten_mask, batch, self.num_heads, steps, key.shape[1])
    # Not the fused attention of a subclass, which is for whole sequences.
    encoded, _ = GroupedQueryAttention._atten_context(
      self, query, key, value, atten_mask
    )
    outputs = self._post(encoded)
    return outputs[:, 0] if is_single else outputs

  def _attend_at(
    self,
    query: _Heads,
    key: _SourceHeads,
    value: _SourceHeads,
    mask: _Mask,
    positions: Int[Array, '#B T'] | None,
  ) -> tuple[_Heads, Float[Array, 'B K G T S'] | None]:
    """As `_atten_context`, for who needs positions in segments."""
    del positions
    return self._atten_context(query, key, value, mask)

  def _scale_query(self, query: _Heads) -> _Heads:
    return query * (self.dim_per_head**-0.5 / self.atten_temp)

  def _atten_context(
    self, query: _Heads, key: _SourceHeads, value: _SourceHeads, mask: _Mask
  ) -> tuple[_Heads, Float[Array, 'B K G T S'] | None]:
    """Returns the mean of the values each query sees, and the weights."""
    query = self._scale_query(query)
    logits = checkpoint_name(groups.logits(jnp.einsum, query, key), 'logits')
    if self.atten_logit_cap > 0.0:
      logits = self.atten_logit_cap * jnp.tanh(logits / self.atten_logit_cap)
    if mask.shape[1] == 1:
      mask = mask[:, :, jnp.newaxis]
    else:
      mask = mask.reshape(mask.shape[0], key.shape[2], -1, *mask.shape[2:])
    masked = functions.apply_mask(logits.astype(jnp.float32), mask)
    probs = softmax.softmax(masked).astype(key.dtype)
    if self.atten_dropout_prob > 0.0 and not self.do_eval:
      probs = functions.apply_dropout(
        probs, self.next_prng_key(), self.atten_dropout_prob
      )
    encoded = groups.average(jnp.einsum, probs, value)
    return checkpoint_name(encoded, 'context'), probs

  def _project(
    self, query_vec: Array, key_vec: Array, value_vec: Array
  ) -> tuple[_Heads, _SourceHeads, _SourceHeads]:
    split = self.activation_split_dims_mapping
    heads = [
      self._project_one(name, x, split.btnh if name == 'query' else split.bskh)
      for name, x in zip(
        checks.INPUTS, (query_vec, key_vec, value_vec), strict=True
      )
    ]
    return heads[0], heads[1], heads[2]

  def _project_one(
    self, name: str, inputs: Array, split: SplitDimsMapping
  ) -> Float[Array, 'B T K H']:
    axis_names = self.mesh_axis_names
    inputs_split = self.activation_split_dims_mapping.btd
    inputs = base_layer.maybe_shard(inputs, inputs_split, axis_names)
    heads = getattr(self, name)(inputs)
    if heads.ndim == 3:
      heads = heads[:, :, jnp.newaxis]
      # One head cannot be split.
      split = split and [*split[:2], None, split[3]]
    heads = base_layer.maybe_shard(heads, split, axis_names)
    return checkpoint_name(heads, f'{name}_proj')

  def _maybe_rope(
    self, heads: Float[Array, 'B T K H'], pos: Int[Array, '#B T'] | None
  ) -> Float[Array, 'B T K H']:
    if self.rope_min_max_timescales is None:
      return heads
    return functions.apply_rope(heads, *self.rope_min_max_timescales, pos)

  def _post(self, encoded: _Heads) -> Float[Array, 'B T D']:
    split = self.activation_split_dims_mapping
    encoded = base_layer.maybe_shard(encoded, split.btnh, self.mesh_axis_names)
    outputs = base_layer.maybe_shard(
      self.post(encoded), split.btd, self.mesh_axis_names
    )
    return checkpoint_name(outputs, 'out_proj')

  def _projection(
    self, num_heads: int, split: SplitDimsMapping
  ) -> pax_fiddle.Config[base_layer.BaseLayer]:
    if num_heads > 1:
      return self._many_heads(num_heads, split)
    one = pax_fiddle.Config(
      multi_query_attention.OneHeadedAttentionProjection,
      input_dim=self.input_dim,
      output_dim=self.dim_per_head,
      use_bias=self.use_bias,
    )
    one.weight_split_dims_mapping.wt = split and [split[0], split[2]]
    return one

  def _many_heads(
    self, num_heads: int, split: SplitDimsMapping
  ) -> pax_fiddle.Config[base_layer.BaseLayer]:
    proj = pax_fiddle.Config(
      projections.AttentionProjection,
      input_dim=self.input_dim,
      num_heads=num_heads,
      dim_per_head=self.dim_per_head,
      use_bias=self.use_bias,
      explicit_fan_in_fan_out_axes=True,
    )
    proj.weight_split_dims_mapping.wt = split
    return proj

  def _check_fields(self) -> None:
    for name in ('input_dim', 'dim_per_head', 'num_heads', 'num_kv_heads'):
      if getattr(self, name) <= 0:
        raise ValueError(
          f'{name} must be positive, got {getattr(self, name)}; set it'
        )
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_kv_heads must divide num_heads={self.num_heads}, got '
        f'{self.num_kv_heads}; each group of heads shares one of keys'
      )
    if self.rope_min_max_timescales and self.dim_per_head % 2:
      raise ValueError(
        'dim_per_head must be even with rope_min_max_timescales, got '
        f'{self.dim_per_head}; channels rotate in pairs'
      )
