# SPDX-License-Identifier: Apache-2.0
"""Attention of layers that share the keys and values of one of them.

The source projects and caches them. The others have queries only, and neither
projections of keys and values nor a cache. StackedTransformer hands them on.

Shapes as in multi_query_attention.py.

References: cross-layer attention, arXiv:2405.12981.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from praxis.layers import multi_query_attention
from praxis.layers.attentions import (
  attention_core,
  dot_product,
  kernel_inputs,
  masks,
  segments,
)

KeysAndValues = attention_core.KeysAndValues


class KeySourceAttention(multi_query_attention.MultiQueryDotProductAttention):
  """Attention that returns its keys and values instead of probabilities."""

  def cached_keys_and_values(self) -> KeysAndValues:
    """Returns the keys and values of all cached steps."""
    return KeysAndValues(*map(self.get_decode_state, self._cached_names()))

  def _attend_heads(
    self,
    heads: kernel_inputs.Heads,
    atten_mask: Float[Array, '#B #N #T S'] | segments.SegmentMask,
    query_pos: dot_product.Positions,
    key_pos: dot_product.Positions,
  ) -> tuple[attention_core.QueryHeads, KeysAndValues]:
    encoded, _ = super()._attend_heads(heads, atten_mask, query_pos, key_pos)
    return encoded, KeysAndValues(heads.key, heads.value)


class SharedKeyAttention(multi_query_attention.MultiQueryDotProductAttention):
  """Attention to the keys and values of another layer with as many heads."""

  def attend(
    self,
    query_vec: Float[Array, 'B T D'],
    keys_and_values: KeysAndValues,
    atten_mask: Float[Array, '#B #N #T S'] | segments.SegmentMask,
    segment_pos: dot_product.Positions = None,
  ) -> tuple[Float[Array, 'B T D'], attention_core.Attended]:
    """Returns the attended values and the probabilities before dropout.

    Args:
      query_vec: inputs of the queries.
      keys_and_values: those of the other layer for the same sequences.
      atten_mask: see DotProductAttention.
      segment_pos: position of each query in its segment; its index when None.

    Raises:
      ValueError: keys have other heads, or another number of steps.
    """
    batch, length = query_vec.shape[:2]
    self._check_keys(keys_and_values, batch, length)
    mask = self._restrict_mask(atten_mask, segment_pos, 0, length)
    attention_core.check_mask(mask, batch, self.num_heads, length, length)
    query = self._shard_heads(self.query(query_vec))
    query = checkpoint_name(query, 'query_proj')
    query = self._prepare_query(query, segment_pos, self._prefill_writer())
    heads = kernel_inputs.Heads(query, *keys_and_values)
    encoded, probs = self._attend_heads(heads, mask, segment_pos, segment_pos)
    split = self.activation_split_dims_mapping.bld
    return self._project_output(encoded, query_vec, split), probs

  def attend_step(
    self,
    query_vec: Float[Array, 'B *L D'],
    keys_and_values: KeysAndValues,
    *,
    atten_mask: Float[Array, '...'],
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B *L'] | None,
  ) -> Float[Array, 'B *L D']:
    """Returns the attended values for one or several decoding steps.

    Args:
      query_vec: input of one step, or of several with a time axis.
      keys_and_values: those that the other layer has cached, which include
        these steps.
      atten_mask: see DotProductAttention.
      time_step: index of the (first) step.
      segment_pos: position of each step in its segment; its index when None.
    """
    is_single = query_vec.ndim == 2
    if is_single:
      query_vec = query_vec[:, jnp.newaxis]
    batch, steps = query_vec.shape[:2]
    pos = masks.step_positions(segment_pos, time_step, steps)
    pos = jnp.broadcast_to(pos, (batch, steps))
    query = self._shard_step_heads(self.query.extend_step(query_vec))
    query = self._prepare_query(query, pos, self._step_writer(time_step))
    length = keys_and_values.key.shape[1]
    mask = masks.expand_step_mask(atten_mask, batch)
    attention_core.check_mask(mask, batch, self.num_heads, steps, length)
    mask = segments.additive(self._restrict_mask(mask, pos, time_step, length))
    inputs = attention_core.AttentionInputs(query, *keys_and_values, mask)
    encoded, _ = self._attend_rows(inputs, time_step)
    split = self._step_output_split()
    outputs = self._project_output(encoded, query_vec, split)
    return outputs[:, 0] if is_single else outputs

  def decoding_state_sequence_length(self) -> int:
    """Returns 0: the other layer has the cache."""
    return 0

  def _check_fields(self) -> None:
    super()._check_fields()
    for name in ('relative_bias_tpl', 'ngrammer_tpl', 'value_ln_tpl'):
      if getattr(self, name) is not None:
        raise ValueError(
          f'{name} must be None in attention to the keys and values of another'
          f' layer, got {getattr(self, name).cls.__name__}; set it there'
        )

  def _check_keys(
    self, keys_and_values: KeysAndValues, batch: int, length: int
  ) -> None:
    heads = [self.num_kv_heads] if self.num_kv_heads > 1 else []
    wanted = (batch, length, *heads, self._head_dim())
    if keys_and_values.key.shape != wanted:
      raise ValueError(
        f'keys of another layer must have shape {list(wanted)}, got'
        f' {list(keys_and_values.key.shape)}; num_kv_heads and dim_per_head of'
        ' both layers must be the same'
      )

  def _check_call(
    self,
    query_vec: Float[Array, '...'],
    key_vec: Float[Array, '...'],
    value_vec: Float[Array, '...'],
    atten_mask: Array | segments.SegmentMask,
  ) -> None:
    raise ValueError(
      f'{type(self).__name__} {self.name!r} must get the keys and values of'
      ' another layer, got inputs; set key_sources of the StackedTransformer'
    )

  def _separate_projections(self) -> tuple[str, ...]:
    return ('query',)

  def _normed_heads(self) -> dict[str, int]:
    return {'layer_norm_q': self.num_heads}
