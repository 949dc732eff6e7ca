# SPDX-License-Identifier: Apache-2.0
"""Local self attention with a bias by distance, learned or fixed.

Shapes: N heads, W block size, T queries, S keys; the distance is that of the
key minus that of the query, from 1 - left_context to right_context where it is
visible.
"""

from __future__ import annotations

import abc

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import local, products


class _DistanceBias(local.LocalSelfAttention):
  """Adds a bias per head and distance to the logits."""

  def _check_fields(self) -> None:
    super()._check_fields()
    if self.left_context is None or self.right_context is None:
      raise ValueError(
        f'left_context and right_context of {type(self).__name__} must be '
        f'numbers, got {self.left_context} and {self.right_context}; the bias '
        'depends on them'
      )

  def _logits(
    self,
    query: products.Heads,
    key: products.SourceHeads,
    offset: products.Offset,
  ) -> Float[Array, 'B N T S']:
    logits = super()._logits(query, key, offset)
    rows, columns = query.shape[1], key.shape[1]
    distance = jnp.arange(columns) - jnp.arange(rows)[:, jnp.newaxis] - offset
    # Far pairs are hidden; their bias only has to be finite.
    distance = jnp.clip(distance, 1 - self.left_context, self.right_context)
    return logits + self._bias(distance).astype(logits.dtype)

  @abc.abstractmethod
  def _bias(self, distance: Int[Array, 'T S']) -> Float[Array, 'N T S']:
    """Returns the bias of visible distances."""


class LocalSelfAttentionRelativeBias(_DistanceBias):
  """Local self attention with a learned bias per head and distance.

  References: DIET-REL in https://arxiv.org/abs/2104.08698
  """

  def setup(self) -> None:
    super().setup()
    # Distances of all pairs of a query and a key of one block.
    context = self._block_size() + self.left_context - 1 + self.right_context
    shape = [self.num_heads, context + self._block_size() - 1]
    self.create_variable(
      'pos_emb_compressed', base_layer.WeightHParams(shape=shape)
    )

  def _bias(self, distance: Int[Array, 'T S']) -> Float[Array, 'N T S']:
    table = self.theta.pos_emb_compressed
    self.add_summary('pos_emb_compressed', jnp.sum(table))
    # The entries stand as upstream has them: the last entry precedes the first.
    first = self.left_context + self._block_size() - 3
    return table[:, (distance + first) % table.shape[1]]


class LocalSelfAttentionAlibi(_DistanceBias):
  """Local self attention with a fixed slope per head over distances.

  References: ALiBi, https://arxiv.org/abs/2108.12409
  """

  def _bias(self, distance: Int[Array, 'T S']) -> Float[Array, 'N T S']:
    nearest_zero = self.left_context + self._block_size() - 2
    slopes = jnp.asarray(_slopes(self.num_heads), jnp.float32)
    return slopes[:, np.newaxis, np.newaxis] * (distance + nearest_zero)


def _slopes(num_heads: int) -> np.ndarray:
  """Returns powers of 2 ** (-8 / n) for the power of two n up to num_heads.

  The heads beyond n have slopes halfway between those, every other one.
  """
  power = 2 ** int(np.log2(num_heads))
  slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
  between = 2.0 ** (-4.0 / power * np.arange(1, 2 * (num_heads - power), 2))
  return np.concatenate([slopes, between])
