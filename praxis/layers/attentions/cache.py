# SPDX-License-Identifier: Apache-2.0
"""The cache that lets attention decode one step at a time.

A forward pass over a prompt leaves keys and values in the collection
DECODE_CACHE (when it is mutable); each step then writes one row and reads all.
Every cached tensor is [B, S, N, H]: batch first, time second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

  def cached_since(
    self, name: str, time_step: Int[Array, ''] | int, reach: int
  ) -> tuple[Float[Array, '...'], Int[Array, ''] | int]:
    """Returns a cached tensor, and the index of `time_step` in it.

    At least `reach` steps come before that one, if there are so many.
    """
    del reach
    return self.get_decode_state(name), time_step

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

  def lazy_broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Raises NotImplementedError; see lazy_prefix.py for what can do it."""
    raise NotImplementedError(
      f'{type(self).__name__}.lazy_broadcast_prefix: it copies its cache for '
      'every sample; use DotProductAttentionWithLPB or '
      'MultiQueryDotProductAttentionLPB as the attention template'
    )

  def right_align_decode_state_with_prefix(
    self, max_prefix_size: int, right_align_fn: DecodeStateTransformFn
  ) -> None:
    """Raises NotImplementedError; see lazy_prefix.py for what can do it."""
    raise NotImplementedError(
      f'{type(self).__name__}.right_align_decode_state_with_prefix: it has no '
      'prefix apart from its cache; use DotProductAttentionWithLPB or '
      'MultiQueryDotProductAttentionLPB as the attention template'
    )

  def init_states(self, *args: Any, **kwargs: Any) -> None:
    """Raises NotImplementedError: a forward pass makes the cache."""
    raise NotImplementedError(
      f'{type(self).__name__}.init_states: call the layer on the prompt with '
      'DECODE_CACHE mutable, which makes the cache'
    )

  def _remember(self, name: str, value: Float[Array, 'B S *K H']) -> None:
    """Caches what the forward pass computed, if decoding may follow."""
    if self.decode_cache:
      self.update_decode_state(name, value)
