# SPDX-License-Identifier: Apache-2.0
"""The window of positions that a query may see."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import jax.typing
from jaxtyping import Array, Float, Int

from praxis.layers.attentions import masks


@dataclasses.dataclass(frozen=True)
class Window:
  """Which keys are visible by their distance from the query."""

  # How many positions up to and including the query's own; all when None.
  left: int | None
  # How many positions after the query's own; all when None.
  right: int | None

  def mask(
    self,
    num_queries: int,
    num_keys: int,
    offset: Int[Array, ''] | int,
    dtype: jax.typing.DTypeLike,
  ) -> Float[Array, 'T S']:
    """Returns the additive mask; the first query stands at key `offset`."""
    return masks.limited_context_mask(
      self.left, self.right, num_queries, dtype, num_keys, offset
    )

  def span(
    self, first: Int[Array, ''] | int, num_queries: int, num_keys: int
  ) -> tuple[Int[Array, ''] | int, int]:
    """Returns the start and number of keys that hold all visible ones.

    The number depends on shapes only. Where the window reaches over an end of
    the keys, the span is moved inside.

    Args:
      first: index of the first query, which is that of its key.
      num_queries: number of queries in a row.
      num_keys: number of keys there are.
    """
    if self.left is None or self.right is None:
      return 0, num_keys
    size = min(num_keys, self.left + self.right + num_queries - 1)
    start = first - self.left + 1
    if isinstance(start, int):
      return min(max(start, 0), num_keys - size), size
    return jnp.clip(start, 0, num_keys - size), size


def cut(x: Array, span: tuple[Array | int, int], axis: int) -> Array:
  """Returns the part of `x` in a span of `axis`; all of an axis of size 1."""
  start, size = span
  if x.shape[axis] == 1 or x.shape[axis] == size:
    return x
  if isinstance(start, int):
    return jax.lax.slice_in_dim(x, start, start + size, axis=axis)
  return jax.lax.dynamic_slice_in_dim(x, start, size, axis)
