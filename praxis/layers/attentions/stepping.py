# SPDX-License-Identifier: Apache-2.0
"""How dot-product attention does one step at a time, from its cache.

Shapes: B batch, L steps in a run, S steps there is room for, D model, N heads,
H head; C the batch of the cache, of which B is a multiple when several samples
continue one prompt. Keys and values have the axes K of their heads, if any.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import checks, dconv, products

_Heads = Float[Array, 'B L N H']
_NewHeads = Float[Array, 'B L *K H']
_States = Float[Array, 'C S *K H']


class SteppingAttention(products.AttentionProducts):
  """The steps of attention; DotProductAttention says what attention is."""

  def extend_step(
    self,
    query_vec: Float[Array, 'B *L D'],
    *,
    atten_mask: Float[Array, '...'],
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, 'B *L'] | None,
    is_cross_attention: bool = False,
  ) -> Float[Array, 'B *L D']:
    """Returns the attended values for one decoding step, or a run of them.

    Keys and values of the step are written to the cache at `time_step`; those
    of a cross attention are all there since the forward pass.

    Args:
      query_vec: the step's input, or with a time axis those of several steps.
      atten_mask: additive, [B, C or 1, 1, S], or [B, C or 1, 1, L, S] for L
        steps.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; its index when None.
      is_cross_attention: whether keys come from another sequence.
    """
    is_single = query_vec.ndim == 2
    if is_single:
      query_vec = query_vec[:, jnp.newaxis]
    batch, steps = query_vec.shape[:2]
    atten_mask = _for_samples(atten_mask, batch)
    pos = _step_positions(segment_pos, time_step, batch, steps)
    query, key, value = self._extend_states(
      query_vec, time_step, pos, is_cross_attention
    )
    length = self.decoding_state_sequence_length()
    checks.check_mask(atten_mask, batch, self.num_heads, steps, length)
    bias = None
    if self.relative_bias_tpl is not None:
      rows = [
        self.relative_bias.extend_step(length, time_step + i)
        for i in range(steps)
      ]
      bias = jnp.concatenate(rows, axis=2)
    encoded, probs = self._attend_step(
      query, key, value, atten_mask, bias, time_step
    )
    if self.ngrammer_tpl is not None:
      encoded = self._extend_ngrams(encoded, probs, time_step)
    outputs = self._post(encoded, is_step=True)
    return outputs[:, 0] if is_single else outputs

  def check_decoding(self, *, prefill: bool, sequential: bool) -> None:
    """Raises ValueError if it looks at indices of steps and must not.

    See `decode_states.check_decoding`.
    """
    del prefill
    if not sequential:
      checks.check_ignores_order(self)

  def _extend_states(
    self,
    query_vec: Float[Array, 'B L D'],
    time_step: Int[Array, ''] | int,
    pos: Int[Array, 'B L'],
    is_cross_attention: bool,
  ) -> tuple[_Heads, _States, _States]:
    """Returns the step's queries, and keys and values of all steps."""
    if is_cross_attention:
      query, key, value = self.query(query_vec), None, None
      if self.ln_tpl is not None:
        query = self.layer_norm_q(query)
    else:
      heads = self._project_step(query_vec)
      query, key, value = self._normalize(*heads)
    if self.dconv_qkv:
      self.extend_decode_state('query_state', query, time_step)
      query = self._convolve(self.dconv_q, 'query_state', time_step, pos)
    if self.use_rotary_position_emb:
      query = self.rotary_position_emb(query, pos)
    if is_cross_attention:
      return query, *self._cached_key_value()
    return (
      query,
      self._extend_key(key, time_step, pos),
      self._extend_value(value, time_step, pos),
    )

  def _project_step(
    self, query_vec: Float[Array, 'B L D']
  ) -> tuple[_Heads, _NewHeads, _NewHeads]:
    if self.combine_qkv:
      heads = self.combined_qkv.extend_step(query_vec)
    else:
      layers = self.query, self.key, self.value
      heads = tuple(layer.extend_step(query_vec) for layer in layers)
    split = self.activation_split_dims_mapping.blnh
    if not self.decoding_maybe_shard_projections or split is None:
      return heads
    # Keys and values of one head have no axis of heads.
    splits = {
      4: [split[0], None, *split[2:]],
      3: [split[0], None, split[3]],
    }
    query, key, value = (
      base_layer.maybe_shard(x, splits[x.ndim], self.mesh_axis_names)
      for x in heads
    )
    return query, key, value

  def _extend_key(
    self, key: _NewHeads, time_step: Array | int, pos: Int[Array, 'B L']
  ) -> _States:
    """Writes the step's key; returns the keys of all steps, as attended to."""
    name = 'key_state'
    if self.dconv_qkv:
      self.extend_decode_state(name, key, time_step)
      key = self._convolve(self.dconv_k, name, time_step, pos)
      name = 'key_post_dconv'
    if self.use_rotary_position_emb:
      if not self.consolidate_rope_key_state:
        self.extend_decode_state(name, key, time_step)
        name = 'key_post_rotary_pos_emb'
      key = self.rotary_position_emb(key, pos)
    return self.extend_decode_state(name, key, time_step)

  def _extend_value(
    self, value: _NewHeads, time_step: Array | int, pos: Int[Array, 'B L']
  ) -> _States:
    states = self.extend_decode_state('value_state', value, time_step)
    if not self.dconv_qkv:
      return states
    value = self._convolve(self.dconv_v, 'value_state', time_step, pos)
    return self.extend_decode_state('value_post_dconv', value, time_step)

  def _extend_ngrams(
    self,
    encoded: _Heads,
    probs: Float[Array, 'B N L S'] | None,
    time_step: Array | int,
  ) -> _Heads:
    """Writes the step's heads; returns them with their n-grams."""
    name = 'encoded_pre_ngrammer'
    states = self.extend_decode_state(name, encoded, time_step)
    steps = [
      self.ngrammer.extend_step(
        states,
        step=time_step + i,
        merge_heads=False,
        attention_score=self._ngram_scores(probs, i),
      )
      for i in range(encoded.shape[1])
    ]
    return jnp.stack(steps, axis=1)

  def _convolve(
    self,
    conv: dconv.CausalDepthwiseConv1D,
    name: str,
    time_step: Array | int,
    pos: Int[Array, 'B L'],
  ) -> _NewHeads:
    """Returns the steps from `time_step` on of what is cached, convolved."""
    states, first = self.cached_since(name, time_step, conv.kernel_size - 1)
    steps = [
      conv.extend_step(states, 1, first + i, pos[:, i])
      for i in range(pos.shape[1])
    ]
    return jnp.stack(steps, axis=1)

  def _cached_key_value(self) -> tuple[_States, _States]:
    """Returns the finished keys and values that the forward pass left."""
    key, value = self._attended_names()
    return self.get_decode_state(key), self.get_decode_state(value)

  def _attended_names(self) -> tuple[str, str]:
    """Returns the names of the cached keys and values that are attended to."""
    key = 'key_post_dconv' if self.dconv_qkv else 'key_state'
    if self.use_rotary_position_emb and not self.consolidate_rope_key_state:
      key = 'key_post_rotary_pos_emb'
    value = 'value_post_dconv' if self.dconv_qkv else 'value_state'
    return key, value


def _for_samples(mask: Array, batch: int) -> Array:
  """Returns the mask with an axis of steps, and repeated for samples."""
  if mask.ndim == 3:
    mask = mask[:, :, jnp.newaxis]
  examples = mask.shape[0]
  if 1 < examples < batch and batch % examples == 0:
    mask = jnp.repeat(mask, batch // examples, axis=0)
  return mask


def _step_positions(
  segment_pos: Array | None, time_step: Array | int, batch: int, steps: int
) -> Int[Array, 'B L']:
  if segment_pos is None:
    segment_pos = (time_step + jnp.arange(steps))[jnp.newaxis]
  elif segment_pos.ndim == 1:
    segment_pos = segment_pos[:, jnp.newaxis] + jnp.arange(steps)
  return jnp.broadcast_to(segment_pos, (batch, steps))
