# SPDX-License-Identifier: Apache-2.0
"""The decode cache of attention layers: keys and values of earlier steps.

A forward pass over a prompt stores keys and values in the collection
DECODE_CACHE if it is mutable. Each decoding step then writes its own and reads
all of them. Cached tensors are [C, S, ...]: C the batch of the cache, S the
number of steps it has room for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import dconv

BATCH_DIM = 0
TIME_DIM = 1

_TimeStep = Int[Array, ''] | int


class KVCache:
  """The cached tensors of one layer, by name.

  The state is in the layer's variables; this object only reads and writes it.
  """

  def __init__(self, layer: base_layer.BaseLayer) -> None:
    self._layer = layer

  @property
  def time_dim(self) -> int:
    """The time axis of the cached tensors."""
    return TIME_DIM

  def max_length(self) -> int:
    """Returns the number of steps the cache has room for."""
    return self.read('key_state').shape[self.time_dim]

  def tensors(self) -> dict[str, Array]:
    """Returns all cached tensors by name."""
    cached = self._layer.variables.get(base_layer.DECODE_CACHE, {})
    return {k: v for k, v in cached.items() if isinstance(v, jax.Array)}

  def read(self, name: str) -> Float[Array, '...']:
    """Returns a cached tensor."""
    return self._layer.get_decode_state(name)

  def replace(self, name: str, state: Float[Array, '...']) -> None:
    """Stores a tensor in place of the cached one, if any."""
    self._layer.update_decode_state(name, state)

  def extend(
    self,
    name: str,
    value: Float[Array, '...'],
    time_step: _TimeStep,
    time_dim: int = TIME_DIM,
  ) -> Float[Array, '...']:
    """Writes consecutive steps to a cached tensor and returns all its steps.

    Args:
      name: of the cached tensor.
      value: one step without a time axis, or several with it.
      time_step: index of the (first) step.
      time_dim: time axis of the cached tensor.
    """
    state = self.read(name)
    if value.ndim < state.ndim:
      value = jnp.expand_dims(value, time_dim)
    new_state = jax.lax.dynamic_update_slice_in_dim(
      state, value.astype(state.dtype), time_step, axis=time_dim
    )
    self.replace(name, new_state)
    return new_state

  def read_with_history(
    self, name: str, time_step: _TimeStep, num_steps: int
  ) -> tuple[Float[Array, '...'], _TimeStep]:
    """Returns a cached tensor and the index of `time_step` in it.

    The tensor includes the `num_steps` steps before that one, or all of them if
    there are fewer.

    Args:
      name: of the cached tensor.
      time_step: index of a step in the whole sequence.
      num_steps: number of earlier steps the caller needs.
    """
    del num_steps
    return self.read(name), time_step

  def transform(
    self,
    transform_fn: base_layer.DecodeStateTransformFn,
    *,
    is_cross_attention: bool,
  ) -> None:
    """Replaces every tensor by transform_fn(tensor, batch_dim, time_dim).

    Keys of cross attention have no axis of decoding steps: time_dim is -1.

    Args:
      transform_fn: computes the new tensor.
      is_cross_attention: whether keys come from another sequence.
    """
    time_dim = -1 if is_cross_attention else self.time_dim
    for name, state in self.tensors().items():
      self.replace(name, transform_fn(state, BATCH_DIM, time_dim))

  def broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Not supported here; see lazy_prefix.PrefixKVCache.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
      f'{type(self._layer).__name__}.lazy_broadcast_prefix: it copies its '
      'cache for every sample; use DotProductAttentionWithLPB or '
      'MultiQueryDotProductAttentionLPB as the attention template'
    )

  def right_align_with_prefix(
    self,
    max_prefix_size: int,
    right_align_fn: base_layer.DecodeStateTransformFn,
  ) -> None:
    """Not supported here; see lazy_prefix.PrefixKVCache.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
      f'{type(self._layer).__name__}.right_align_decode_state_with_prefix: it '
      'has no prefix apart from its cache; use DotProductAttentionWithLPB or '
      'MultiQueryDotProductAttentionLPB as the attention template'
    )


@dataclasses.dataclass(frozen=True)
class PrefillWriter:
  """Caches the tensors of a forward pass over whole sequences."""

  cache: KVCache
  # Whether tensors are cached at all.
  enabled: bool

  def write(self, name: str, value: Float[Array, '...']) -> Array:
    """Caches a tensor [B, T, ...] and returns it."""
    if self.enabled:
      self.cache.replace(name, value)
    return value

  def convolve(
    self,
    conv: dconv.CausalDepthwiseConv1D,
    name: str,
    value: Float[Array, 'B T ...'],
    pos: Int[Array, '#B T'] | None,
  ) -> Float[Array, 'B T ...']:
    """Caches the input of a causal convolution and returns the output.

    Args:
      conv: the convolution over time.
      name: of the cached input.
      value: the input.
      pos: position of each step in its segment; its index when None.
    """
    self.write(name, value)
    return conv(value, TIME_DIM, pos)


@dataclasses.dataclass(frozen=True)
class StepWriter:
  """Writes the tensors of L consecutive decoding steps to the cache."""

  cache: KVCache
  # Index of the first step.
  time_step: _TimeStep
  # The layer's extend_decode_state, which its subclasses may override.
  extend: Callable[..., Array]

  def write(self, name: str, value: Float[Array, 'B L ...']) -> Array:
    """Caches the steps and returns all cached steps."""
    return self.extend(name, value, jnp.asarray(self.time_step), TIME_DIM)

  def convolve(
    self,
    conv: dconv.CausalDepthwiseConv1D,
    name: str,
    value: Float[Array, 'B L ...'],
    pos: Int[Array, 'B L'] | None,
  ) -> Float[Array, 'B L ...']:
    """Caches the input of a causal convolution and returns the steps' output.

    Args:
      conv: the convolution over time.
      name: of the cached input.
      value: the steps' input.
      pos: position of each step in its segment; its index when None.
    """
    self.write(name, value)
    states, first = self.cache.read_with_history(
      name, self.time_step, conv.kernel_size - 1
    )
    steps = [
      conv.extend_step(
        states, TIME_DIM, first + i, None if pos is None else pos[:, i]
      )
      for i in range(value.shape[TIME_DIM])
    ]
    return jnp.stack(steps, axis=TIME_DIM)


CacheWriter = PrefillWriter | StepWriter


class CachedAttention(base_layer.BaseLayer):
  """An attention layer that owns a KVCache: upstream's methods on it."""

  # Whether a forward pass may store a cache for decoding.
  decode_cache: bool = True

  def decoding_state_sequence_length(self) -> int:
    """Returns the number of steps the cache has room for."""
    return self._kv_cache().max_length()

  def extend_decode_state(
    self,
    name: str,
    value: Float[Array, '...'],
    time_step: _TimeStep,
    time_dim: int = TIME_DIM,
  ) -> Float[Array, '...']:
    """Writes steps to a cached tensor; see `KVCache.extend`."""
    return self._kv_cache().extend(name, value, time_step, time_dim)

  def transform_decode_state(
    self,
    transform_fn: base_layer.DecodeStateTransformFn,
    *,
    is_cross_attention: bool = False,
  ) -> None:
    """Replaces cached tensors by transform_fn(tensor, batch_dim, time_dim).

    Args:
      transform_fn: computes the new tensor.
      is_cross_attention: whether keys come from another sequence; their
        time_dim is -1.
    """
    self._kv_cache().transform(
      transform_fn, is_cross_attention=is_cross_attention
    )

  def lazy_broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Freezes the cache as a prefix shared by samples; see lazy_prefix.py.

    Args:
      num_suffix_samples: number of samples that share what is cached.
      suffix_length: number of steps the samples' own cache has room for.

    Raises:
      NotImplementedError: the layer copies its cache for every sample.
    """
    self._kv_cache().broadcast_prefix(num_suffix_samples, suffix_length)

  def right_align_decode_state_with_prefix(
    self,
    max_prefix_size: int,
    right_align_fn: base_layer.DecodeStateTransformFn,
  ) -> None:
    """Joins suffixes with their prefixes, aligned right; see lazy_prefix.py.

    Args:
      max_prefix_size: number of steps to keep of the prefixes, the last ones.
      right_align_fn: aligns a tensor [rows, time, ...].

    Raises:
      NotImplementedError: the layer has no shared prefixes.
    """
    self._kv_cache().right_align_with_prefix(max_prefix_size, right_align_fn)

  def init_states(self, *args: Any, **kwargs: Any) -> None:
    """Not supported: a forward pass creates the cache.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
      f'{type(self).__name__}.init_states: call the layer on the prompt with '
      'DECODE_CACHE mutable, which makes the cache'
    )

  def _kv_cache(self) -> KVCache:
    """Returns the cache; subclasses choose another kind."""
    return KVCache(self)

  def _prefill_writer(self) -> PrefillWriter:
    return PrefillWriter(self._kv_cache(), self.decode_cache)

  def _step_writer(self, time_step: _TimeStep) -> StepWriter:
    return StepWriter(self._kv_cache(), time_step, self.extend_decode_state)
