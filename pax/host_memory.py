# SPDX-License-Identifier: Apache-2.0
"""Arrays that are offloaded to pinned host memory."""

from __future__ import annotations

from typing import Final

import jax

PINNED_HOST: Final = 'pinned_host'


def is_offloaded(sharding: jax.sharding.Sharding) -> bool:
  """Returns whether arrays of this sharding are in host memory."""
  return sharding.memory_kind == PINNED_HOST


def to_device(x: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
  """Returns an array of this sharding in the memory of its devices."""
  if not is_offloaded(sharding):
    return x
  return jax.device_put(x, sharding.with_memory_kind('device'))


def to_host(x: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
  """Returns an array in host memory if this sharding, its own, is there."""
  return jax.device_put(x, sharding) if is_offloaded(sharding) else x
