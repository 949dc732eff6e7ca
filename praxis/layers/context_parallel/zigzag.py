# SPDX-License-Identifier: Apache-2.0
"""Gives each device of a ring two pieces of a sequence, one from each end.

A sequence lies on devices in order; in 2 n pieces, device i has 2 i and 2 i + 1
and gets i and 2 n - 1 - i.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped


def scatter(
  x: Shaped[Array, 'B T ...'], axis: str, size: int
) -> Shaped[Array, 'B T ...']:
  """Returns the pieces of both ends in place of neighbouring ones."""
  front, back = jnp.split(x, 2, axis=1)
  front, back = (
    jax.lax.ppermute(half, axis, _order(size, offset))
    for offset, half in enumerate((front, back))
  )
  # An even piece came from the front half of some device, an odd one from the
  # back; the lower one of device i is i.
  return _sorted(front, back, axis)


def gather(
  x: Shaped[Array, 'B T ...'], axis: str, size: int
) -> Shaped[Array, 'B T ...']:
  """Undoes `scatter`."""
  even, odd = jnp.split(_sorted(*jnp.split(x, 2, axis=1), axis), 2, axis=1)
  back = [
    [(there, here) for here, there in _order(size, offset)] for offset in (0, 1)
  ]
  halves = [
    jax.lax.ppermute(half, axis, order)
    for half, order in zip((even, odd), back, strict=True)
  ]
  return jnp.concatenate(halves, axis=1)


def _order(size: int, offset: int) -> list[tuple[int, int]]:
  """Returns (from, to) of each device's front or back half."""
  pieces = [2 * i + offset for i in range(size)]
  return [(i, min(p, 2 * size - 1 - p)) for i, p in enumerate(pieces)]


def _sorted(
  a: Shaped[Array, 'B C ...'], b: Shaped[Array, 'B C ...'], axis: str
) -> Shaped[Array, 'B T ...']:
  """Returns a and b on even devices, b and a on odd ones."""
  is_even = jax.lax.axis_index(axis) % 2 == 0
  return jnp.concatenate(
    [jnp.where(is_even, a, b), jnp.where(is_even, b, a)], axis=1
  )
