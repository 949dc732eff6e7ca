# SPDX-License-Identifier: Apache-2.0
"""How dot-product attention does one step at a time, from its cache.

Shapes: B batch, L steps in a run, S steps there is room for, D model, N heads,
H head; C the batch of the cache, of which B is a multiple when several samples
continue one prompt.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import cache, dconv

_Heads = Float[Array, 'B L N H']
_States = Float[Array, 'C S N H']


class SteppingAttention(cache.CachedAttention):
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
      atten_mask: additive, [B or 1, 1, S], or [B or 1, 1, L, S] for L steps.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; its index when None.
      is_cross_attention: whether keys come from another sequence.
    """
    is_single = query_vec.ndim == 2
    if is_single:
      query_vec = query_vec[:, jnp.newaxis]
    if atten_mask.ndim == 3:
      atten_mask = atten_mask[:, :, jnp.newaxis]
    pos = _step_positions(segment_pos, time_step, *query_vec.shape[:2])
    query, key, value = self._extend_states(
      query_vec, time_step, pos, is_cross_attention
    )
    bias = None
    if self.relative_bias_tpl is not None:
      steps = [time_step + i for i in range(query.shape[1])]
      rows = [self.relative_bias.extend_step(key.shape[1], t) for t in steps]
      bias = jnp.concatenate(rows, axis=2)
    encoded = self._attend_grouped(query, key, value, atten_mask, bias)
    outputs = self._post(encoded, is_step=True)
    return outputs[:, 0] if is_single else outputs

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
      states = self.extend_decode_state('query_state', query, time_step)
      query = _convolve_steps(self.dconv_q, states, time_step, pos)
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
  ) -> tuple[_Heads, _Heads, _Heads]:
    if self.combine_qkv:
      heads = self.combined_qkv.extend_step(query_vec)
    else:
      layers = self.query, self.key, self.value
      heads = tuple(layer.extend_step(query_vec) for layer in layers)
    split = self.activation_split_dims_mapping.blnh
    if not self.decoding_maybe_shard_projections or split is None:
      return heads
    split = [split[0], None, *split[2:]]
    query, key, value = (
      base_layer.maybe_shard(x, split, self.mesh_axis_names) for x in heads
    )
    return query, key, value

  def _extend_key(
    self, key: _Heads, time_step: Array | int, pos: Int[Array, 'B L']
  ) -> _States:
    """Writes the step's key; returns the keys of all steps, as attended to."""
    name = 'key_state'
    if self.dconv_qkv:
      states = self.extend_decode_state(name, key, time_step)
      key = _convolve_steps(self.dconv_k, states, time_step, pos)
      name = 'key_post_dconv'
    if self.use_rotary_position_emb:
      if not self.consolidate_rope_key_state:
        self.extend_decode_state(name, key, time_step)
        name = 'key_post_rotary_pos_emb'
      key = self.rotary_position_emb(key, pos)
    return self.extend_decode_state(name, key, time_step)

  def _extend_value(
    self, value: _Heads, time_step: Array | int, pos: Int[Array, 'B L']
  ) -> _States:
    states = self.extend_decode_state('value_state', value, time_step)
    if not self.dconv_qkv:
      return states
    value = _convolve_steps(self.dconv_v, states, time_step, pos)
    return self.extend_decode_state('value_post_dconv', value, time_step)

  def _cached_key_value(
    self,
  ) -> tuple[_States, _States]:
    """Returns the finished keys and values that the forward pass left."""
    key = 'key_post_dconv' if self.dconv_qkv else 'key_state'
    if self.use_rotary_position_emb and not self.consolidate_rope_key_state:
      key = 'key_post_rotary_pos_emb'
    value = 'value_post_dconv' if self.dconv_qkv else 'value_state'
    return self.get_decode_state(key), self.get_decode_state(value)

  def _attend_grouped(
    self,
    query: Float[Array, 'B L N H'],
    key: _States,
    value: _States,
    mask: Float[Array, '#B #N #L S'],
    bias: Float[Array, '#B N L S'] | None,
  ) -> Float[Array, 'B L N H']:
    """Attends when B/C samples in a row share the keys of one example."""
    batch, steps = query.shape[:2]
    samples = batch // key.shape[0]
    if samples == 1:
      return self._attend(query, key, value, mask, bias)[0]
    grouped = query.reshape(-1, samples * steps, *query.shape[2:])
    mask = _group_rows(mask, batch, steps, samples)
    if bias is not None:
      bias = _group_rows(bias, batch, steps, samples)
    encoded, _ = self._attend(grouped, key, value, mask, bias)
    return encoded.reshape(query.shape)


def _step_positions(
  segment_pos: Array | None, time_step: Array | int, batch: int, steps: int
) -> Int[Array, 'B L']:
  if segment_pos is None:
    segment_pos = (time_step + jnp.arange(steps))[jnp.newaxis]
  elif segment_pos.ndim == 1:
    segment_pos = segment_pos[:, jnp.newaxis] + jnp.arange(steps)
  return jnp.broadcast_to(segment_pos, (batch, steps))


def _convolve_steps(
  conv: dconv.CausalDepthwiseConv1D,
  states: _States,
  time_step: Array | int,
  pos: Int[Array, 'B L'],
) -> Float[Array, 'B L N H']:
  steps = [
    conv.extend_step(states, 1, time_step + i, pos[:, i])
    for i in range(pos.shape[1])
  ]
  return jnp.stack(steps, axis=1)


def _group_rows(
  rows: Float[Array, '#B N #L S'], batch: int, steps: int, samples: int
) -> Float[Array, 'C N K S']:
  """Moves the samples of an example from the batch axis to the query axis."""
  _, heads, _, keys = rows.shape
  rows = jnp.broadcast_to(rows, (batch, heads, steps, keys))
  rows = rows.reshape(batch // samples, samples, heads, steps, keys)
  rows = jnp.moveaxis(rows, 2, 1)
  return rows.reshape(batch // samples, heads, samples * steps, keys)
