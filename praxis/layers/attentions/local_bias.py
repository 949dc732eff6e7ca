# SPDX-License-Identifier: Apache-2.0
"""Local self-attention with a relative bias: learned (DIET-Rel), or ALiBi.

Shapes: N heads, W block size, T queries, S keys. The distance is the key's
position minus the query's, from 1 - left_context to right_context for visible
keys.
"""

from __future__ import annotations

import abc

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import attention_core, local


class _RelativeBiasAttention(local.LocalSelfAttention):
  """Adds a bias per head and distance to the logits."""

  def _check_fields(self) -> None:
    super()._check_fields()
    self._contexts()

  def _contexts(self) -> tuple[int, int]:
    """Returns the left and the right context, on which the bias depends."""
    if self.left_context is None or self.right_context is None:
      raise ValueError(
        f'left_context and right_context of {type(self).__name__} must be '
        f'numbers, got {self.left_context} and {self.right_context}; the bias '
        'depends on them'
      )
    return self.left_context, self.right_context

  def _logits(
    self,
    query: attention_core.QueryHeads,
    key: attention_core.KeyHeads,
    first_query: attention_core.Index,
  ) -> Float[Array, 'B N T S']:
    logits = super()._logits(query, key, first_query)
    rows, columns = query.shape[1], key.shape[1]
    distance = jnp.arange(columns) - jnp.arange(rows)[:, jnp.newaxis]
    distance -= first_query
    # Pairs outside the window are masked; their bias only has to be finite.
    left_context, right_context = self._contexts()
    distance = jnp.clip(distance, 1 - left_context, right_context)
    return logits + self._bias(distance).astype(logits.dtype)

  @abc.abstractmethod
  def _bias(self, distance: Int[Array, 'T S']) -> Float[Array, 'N T S']:
    """Returns the bias of distances inside the window."""


class LocalSelfAttentionRelativeBias(_RelativeBiasAttention):
  """Local self-attention with a learned bias per head and distance.

  References: DIET-Rel in https://arxiv.org/abs/2104.08698
  """

  def setup(self) -> None:
    super().setup()
    # One entry per distance between a query and a key of a block.
    left_context, right_context = self._contexts()
    context = self._block_size() + left_context - 1 + right_context
    shape = [self.num_heads, context + self._block_size() - 1]
    self.create_variable(
      'pos_emb_compressed', base_layer.WeightHParams(shape=shape)
    )

  def _bias(self, distance: Int[Array, 'T S']) -> Float[Array, 'N T S']:
    table = self.theta.pos_emb_compressed
    self.add_summary('pos_emb_compressed', jnp.sum(table))
    # Upstream's order of entries: distances wrap around the end of the table.
    left_context, _ = self._contexts()
    first = left_context + self._block_size() - 3
    return table[:, (distance + first) % table.shape[1]]


class LocalSelfAttentionAlibi(_RelativeBiasAttention):
  """Local self-attention with a fixed slope per head over distances.

  References: ALiBi, https://arxiv.org/abs/2108.12409
  """

  def _bias(self, distance: Int[Array, 'T S']) -> Float[Array, 'N T S']:
    left_context, _ = self._contexts()
    offset = left_context + self._block_size() - 2
    slopes = jnp.asarray(_slopes(self.num_heads), jnp.float32)
    return slopes[:, np.newaxis, np.newaxis] * (distance + offset)


def _slopes(num_heads: int) -> np.ndarray:
  """Returns the slope of each head: 2^(-8 i / n) for head i = 1 .. n.

  n is the largest power of two up to num_heads. Further heads take every other
  slope of the sequence for 2 n heads, as ALiBi's reference code does.
  """
  power = 2 ** int(np.log2(num_heads))
  slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
  extra_slopes = 2.0 ** (
    -4.0 / power * np.arange(1, 2 * (num_heads - power), 2)
  )
  return np.concatenate([slopes, extra_slopes])
