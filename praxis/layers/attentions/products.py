# SPDX-License-Identifier: Apache-2.0
"""The two products of attention, and what happens between them.

Shapes: B batch, T queries, S keys and values, N heads, H head. Keys and values
have as many heads as queries here; a subclass may have fewer (K), or none.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import cache, softmax
from praxis.layers.attentions import window as windows

Heads = Float[Array, 'B T N H']
SourceHeads = Float[Array, 'B S *K H']
# C is the batch of the cache.
CachedHeads = Float[Array, 'C S *K H']
# The first axis of a mask or bias is 1 or the batch.
Mask = Float[Array, '#B #N #T S']
Bias = Float[Array, '#B N T S']
Offset = Int[Array, ''] | int


class AttentionProducts(cache.CachedAttention):
  """Attends with projected queries; DotProductAttention has the fields."""

  # Whether logits depend on how far apart the indices of query and key are.
  _logits_use_offset: ClassVar[bool] = False

  def _attend_at(
    self,
    query: Heads,
    key: SourceHeads,
    value: SourceHeads,
    mask: Mask,
    bias: Bias | None,
    positions: Int[Array, '#B T'] | None,
  ) -> tuple[Heads, Float[Array, 'B N ...'] | None]:
    """As `_attend`, for who needs the queries' positions in their segments."""
    del positions
    return self._attend(query, key, value, mask, bias)

  def _attend(
    self,
    query: Heads,
    key: SourceHeads,
    value: SourceHeads,
    mask: Mask,
    bias: Bias | None,
  ) -> tuple[Heads, Float[Array, 'B N ...'] | None]:
    """Returns the mean of the values each query sees, and the weights.

    Args:
      query: not yet scaled.
      key: as many as values.
      value: what is averaged.
      mask: additive; see masks.py.
      bias: added to the logits.
    """
    return self._attend_all(query, key, value, mask, bias, 0)

  def _attend_all(
    self,
    query: Heads,
    key: SourceHeads,
    value: SourceHeads,
    mask: Mask,
    bias: Bias | None,
    offset: Offset,
  ) -> tuple[Heads, Float[Array, 'B N T S']]:
    """As `_attend`, with the logits of all queries and keys in memory.

    The first query stands at key `offset`.
    """
    window = self._window()
    if window is not None:
      sizes = query.shape[1], key.shape[1]
      mask = jnp.minimum(mask, window.mask(*sizes, offset, mask.dtype))
    logits = self._logits(self._scale_query(query), key, offset)
    probs = self._probs(logits, mask, bias).astype(key.dtype)
    encoded = self._average(self.atten_dropout(probs), value)
    return self._shard_heads(checkpoint_name(encoded, 'context')), probs

  def _probs(
    self, logits: Float[Array, 'B N T S'], mask: Mask, bias: Bias | None
  ) -> Float[Array, 'B N T S']:
    """Returns how much each query sees of each key, in float32."""
    if bias is not None:
      logits += bias.astype(logits.dtype)
    if self.scale_logits_by_head_dims:
      logits *= self._head_size() ** -0.5
    logits = checkpoint_name(logits, 'logits')
    if self.atten_logit_cap > 0.0:
      logits = self.atten_logit_cap * jnp.tanh(logits / self.atten_logit_cap)
    return softmax.masked_softmax(
      logits,
      mask,
      extra_logit=self.attention_extra_logit,
      zero_fully_masked=self.zero_fully_masked,
    )

  def _attend_step(
    self,
    query: Heads,
    key: CachedHeads,
    value: CachedHeads,
    mask: Mask,
    bias: Bias | None,
    time_step: Offset,
  ) -> tuple[Heads, Float[Array, 'B N T ...']]:
    """Attends from steps `time_step` on to the cache, or a window of it.

    When B / C samples in a row continue one example of the cache, they become
    more queries of it, so that its keys are read once.
    """
    batch, steps = query.shape[:2]
    samples, rest = divmod(batch, key.shape[0])
    if rest:
      raise ValueError(
        f'the batch of query_vec must be a multiple of {key.shape[0]}, the '
        f'batch of the cache, got {batch}; repeat each example as often'
      )
    window = self._window()
    if window is not None:
      span = window.span(time_step, steps, key.shape[1])
      key, value = (windows.cut(x, span, 1) for x in (key, value))
      mask, bias = jax.tree.map(
        lambda x: windows.cut(x, span, -1), (mask, bias)
      )
      time_step -= span[0]
    if self._logits_use_offset or window is not None:
      key, value = (jnp.repeat(x, samples, axis=0) for x in (key, value))
      samples = 1
    if samples == 1:
      return self._attend_all(query, key, value, mask, bias, time_step)
    grouped = query.reshape(-1, samples * steps, *query.shape[2:])
    mask = _group_rows(mask, batch, steps, samples)
    if bias is not None:
      bias = _group_rows(bias, batch, steps, samples)
    encoded, probs = self._attend_all(grouped, key, value, mask, bias, 0)
    return encoded.reshape(query.shape), _ungroup_rows(probs, samples)

  def _window(self) -> windows.Window | None:
    """Returns what a query may see beside what the mask hides; None for all."""
    return None

  def _logits(
    self, query: Heads, key: SourceHeads, offset: Offset
  ) -> Float[Array, 'B N T S']:
    del offset
    return self.qk_einsum('BTNH,BSNH->BNTS', query, key)

  def _average(
    self, probs: Float[Array, 'B N T S'], value: SourceHeads
  ) -> Heads:
    return self.pv_einsum('BNTS,BSNH->BTNH', probs, value)

  def _scale_query(self, query: Heads) -> Heads:
    if not self.internal_enable_query_scale:
      return query
    if self.internal_enable_per_dim_scale:
      return self.per_dim_scale(query)
    size = self._head_size()
    if not self.scale_query_by_dim_per_head and self.hidden_dim:
      size = self.hidden_dim // self.num_heads
    return query * size**-0.5

  def _head_size(self) -> int:
    if self.dim_per_head is not None:
      return self.dim_per_head
    return self.hidden_dim // self.num_heads

  def _shard_heads(self, x: Float[Array, '...']) -> Float[Array, '...']:
    split = self.activation_split_dims_mapping.blnh
    return base_layer.maybe_shard(x, split, self.mesh_axis_names)


def _group_rows(
  rows: Float[Array, '#B N #L S'], batch: int, steps: int, samples: int
) -> Float[Array, 'C N K S']:
  """Moves the samples of an example from the batch axis to the query axis."""
  _, heads, _, keys = rows.shape
  rows = jnp.broadcast_to(rows, (batch, heads, steps, keys))
  rows = rows.reshape(batch // samples, samples, heads, steps, keys)
  rows = jnp.moveaxis(rows, 2, 1)
  return rows.reshape(batch // samples, heads, samples * steps, keys)


def _ungroup_rows(
  rows: Float[Array, 'C N K S'], samples: int
) -> Float[Array, 'B N L S']:
  """Undoes `_group_rows`."""
  examples, heads, _, keys = rows.shape
  rows = rows.reshape(examples, heads, samples, -1, keys)
  rows = jnp.moveaxis(rows, 1, 2)
  return rows.reshape(examples * samples, heads, -1, keys)
