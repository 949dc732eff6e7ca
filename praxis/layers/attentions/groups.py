# SPDX-License-Identifier: Apache-2.0
"""The products of attention when groups of heads share keys and values.

Shapes: B batch, T queries, S keys and values, N = K · G heads of queries, K
heads of keys and values, H head.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Array, Float

Einsum = Callable[..., Array]


def logits(
  einsum: Einsum, query: Float[Array, 'B T N H'], key: Float[Array, 'B S K H']
) -> Float[Array, 'B K G T S']:
  """Returns the product of each query with the keys of its group."""
  batch, length, _, size = query.shape
  grouped = query.reshape(batch, length, key.shape[2], -1, size)
  return einsum('BTKGH,BSKH->BKGTS', grouped, key)


def average(
  einsum: Einsum,
  probs: Float[Array, 'B K G T S'],
  value: Float[Array, 'B S K H'],
) -> Float[Array, 'B T N H']:
  """Returns the values of each group, weighted."""
  encoded = einsum('BKGTS,BSKH->BTKGH', probs, value)
  batch, length, *_, size = encoded.shape
  return encoded.reshape(batch, length, -1, size)
