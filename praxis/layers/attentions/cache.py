# SPDX-License-Identifier: Apache-2.0
"""The cache that lets attention decode one step at a time.

A forward pass over a prompt leaves keys and values in the collection
DECODE_CACHE (when it is mutable); each step then writes one row and reads all.
Every cached tensor is [B, S, N, H]: batch first, time second.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer

# fn(tensor, batch_dim, time_dim), -1 for a dimension the tensor lacks.
DecodeStateTransformFn = Callable[[Array, int, int], Array]

BATCH_DIM = 0
TIME_DIM = 1


class CachedAttention(base_layer.BaseLayer):
  """What attention layers share to remember keys and values."""

  # Whether a forward pass may leave a cache for decoding.
  decode_cache: bool = True

  def decoding_state_sequence_length(self) -> int:
    """Returns for how many steps the cache has room."""
    return self.get_decode_state('key_state').shape[TIME_DIM]

  def extend_decode_state(
    self,
    name: str,
    value: Float[Array, '...'],
    time_step: Int[Array, ''] | int,
    time_dim: int = TIME_DIM,
  ) -> Float[Array, '...']:
    """Writes rows to a cached tensor from `time_step` on; returns all of it.

    Args:
      name: of the cached tensor.
      value: one row without a time axis, or several with it.
      time_step: where the (first) row goes.
      time_dim: which axis of the cached tensor is time.
    """
    state = self.get_decode_state(name)
    if value.ndim < state.ndim:
      value = jnp.expand_dims(value, time_dim)
    new_state = jax.lax.dynamic_update_slice_in_dim(
      state, value.astype(state.dtype), time_step, axis=time_dim
    )
    self.update_decode_state(name, new_state)
    return new_state

  def transform_decode_state(
    self,
    transform_fn: DecodeStateTransformFn,
    *,
    is_cross_attention: bool = False,
  ) -> None:
    """Replaces every cached tensor by what the function makes of it.

    The cache of a cross attention has no axis of decoding steps, so it is
    passed on with time_dim -1.
    """
    time_dim = -1 if is_cross_attention else TIME_DIM
    cached = self.variables.get(base_layer.DECODE_CACHE, {})
    for name, state in cached.items():
      if isinstance(state, jax.Array):
        new_state = transform_fn(state, BATCH_DIM, time_dim)
        self.update_decode_state(name, new_state)

  def _remember(self, name: str, value: Float[Array, 'B S N H']) -> None:
    """Caches what the forward pass computed, if decoding may follow."""
    if self.decode_cache:
      self.update_decode_state(name, value)
