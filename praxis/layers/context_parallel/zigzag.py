# SPDX-License-Identifier: Apache-2.0
"""Zigzag order: each device gets two pieces of a sequence, one from each end.

Of a sequence in 2 n pieces, device i holds 2 i and 2 i + 1 in sequence order,
and i and 2 n - 1 - i in zigzag order. Under a causal mask all devices then have
the same work.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped


def to_zigzag(
  x: Shaped[Array, 'B T ...'], axis: str, size: int
) -> Shaped[Array, 'B T ...']:
  """Exchanges pieces in sequence order for those in zigzag order.

  Args:
    x: this device's two pieces.
    axis: the mesh axis that shards the sequence.
    size: number of devices of that axis.
  """
  front, back = jnp.split(x, 2, axis=1)
  front, back = (
    jax.lax.ppermute(half, axis, _permutation(size, offset))
    for offset, half in enumerate((front, back))
  )
  # Even pieces come from the front half of a device, odd ones from the back;
  # the lower piece of device i is i.
  return _swap_on_odd_devices(front, back, axis)


def from_zigzag(
  x: Shaped[Array, 'B T ...'], axis: str, size: int
) -> Shaped[Array, 'B T ...']:
  """Inverts `to_zigzag`."""
  front, back = jnp.split(x, 2, axis=1)
  swapped = _swap_on_odd_devices(front, back, axis)
  halves = [
    jax.lax.ppermute(
      half, axis, [(to, source) for source, to in _permutation(size, offset)]
    )
    for offset, half in enumerate(jnp.split(swapped, 2, axis=1))
  ]
  return jnp.concatenate(halves, axis=1)


def _permutation(size: int, offset: int) -> list[tuple[int, int]]:
  """Returns (source, target) of each device's front or back half."""
  pieces = [2 * i + offset for i in range(size)]
  return [(i, min(p, 2 * size - 1 - p)) for i, p in enumerate(pieces)]


def _swap_on_odd_devices(
  a: Shaped[Array, 'B C ...'], b: Shaped[Array, 'B C ...'], axis: str
) -> Shaped[Array, 'B T ...']:
  """Returns a and b on even devices, b and a on odd ones."""
  is_even = jax.lax.axis_index(axis) % 2 == 0
  return jnp.concatenate(
    [jnp.where(is_even, a, b), jnp.where(is_even, b, a)], axis=1
  )
