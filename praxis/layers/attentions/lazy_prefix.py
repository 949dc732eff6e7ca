# SPDX-License-Identifier: Apache-2.0
"""Attention that keeps a shared prompt once for all samples that continue it.

A lazy broadcast of the prefix freezes the decode cache as a chunk in the
collection PREFIX_DECODE_CACHE and starts an empty one, with an axis of samples
and room for the suffixes. It can be done again: each time the samples so far
become prefixes of new samples.

    chunk 0: key_state_0_pfx  [B, T0, N, H]
    chunk 1: key_state_1_pfx  [B, n0, T1, N, H]
    suffix:  key_state        [B, n0, n1, T2, N, H]

A step's inputs have B * n0 * n1 rows; the text of each is the chunks of its
prefixes, one after the other, and its suffix.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import cache, dot_product, products

PREFIX_DECODE_CACHE = base_layer.PREFIX_DECODE_CACHE


class LazyPrefix:
  """The cache in chunks, for a DotProductAttention that has it as first base.

  It is no layer, so that fields come from the attention alone.
  """

  def lazy_broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Freezes the cache as a prefix and starts one of samples after it.

    Args:
      num_suffix_samples: how many samples share what is cached.
      suffix_length: for how many steps the new cache has room.
    """
    if not self.is_mutable_collection(PREFIX_DECODE_CACHE):
      raise ValueError(
        'a lazy broadcast of the prefix needs the mutable collections '
        f'{base_layer.DECODE_CACHE!r} and {PREFIX_DECODE_CACHE!r}, the latter '
        'is not; add it to `mutable` of apply'
      )
    count = self._num_prefixes()
    for name, state in self._cached().items():
      self.put_variable(PREFIX_DECODE_CACHE, _chunk_name(name, count), state)
      lead, tail = state.shape[: count + 1], state.shape[count + 2 :]
      shape = (*lead, num_suffix_samples, suffix_length, *tail)
      self.update_decode_state(name, jnp.zeros(shape, state.dtype))

  def transform_decode_state(
    self,
    transform_fn: cache.DecodeStateTransformFn,
    *,
    is_cross_attention: bool = False,
  ) -> None:
    """Replaces the cached tensors of suffixes; see CachedAttention."""
    time_dim = -1 if is_cross_attention else self._time_dim()
    for name, state in self._cached().items():
      new_state = transform_fn(state, cache.BATCH_DIM, time_dim)
      self.update_decode_state(name, new_state)

  def right_align_decode_state_with_prefix(
    self,
    max_prefix_size: int,
    right_align_fn: cache.DecodeStateTransformFn,
  ) -> None:
    """Joins suffixes with their prefixes and aligns both to the right.

    The prefixes are left without steps.

    Args:
      max_prefix_size: how many steps, the last ones, are taken of prefixes.
      right_align_fn: aligns a tensor [rows, time, ...].
    """
    if self._num_prefixes() and not self.is_mutable_collection(
      PREFIX_DECODE_CACHE
    ):
      raise ValueError(
        f'the collection {PREFIX_DECODE_CACHE!r} must be mutable to empty the '
        'prefixes; add it to `mutable` of apply'
      )
    for name, state in self._cached().items():
      joined = self._with_prefixes(name, max_prefix_size)
      aligned = right_align_fn(joined, cache.BATCH_DIM, cache.TIME_DIM)
      shape = (*state.shape[: self._time_dim()], *aligned.shape[1:])
      self.update_decode_state(name, aligned.reshape(shape))
      for i, chunk in enumerate(self._prefixes(name)):
        empty = jax.lax.slice_in_dim(chunk, 0, 0, axis=i + 1)
        self.put_variable(PREFIX_DECODE_CACHE, _chunk_name(name, i), empty)

  def decoding_state_sequence_length(self) -> int:
    """Returns for how many steps prefixes and suffix have room."""
    suffix = self.get_decode_state('key_state').shape[self._time_dim()]
    return self._prefix_length() + suffix

  def extend_decode_state(
    self,
    name: str,
    value: Float[Array, '...'],
    time_step: Int[Array, ''] | int,
    time_dim: int = cache.TIME_DIM,
  ) -> Float[Array, '...']:
    """Writes rows to the cached suffixes; returns those, [rows, time, ...]."""
    state = self.get_decode_state(name)
    axis = self._time_dim()
    # One row of each sample, or a run of them.
    steps = value.shape[1] if value.ndim == state.ndim - axis + 1 else 1
    value = value.reshape(*state.shape[:axis], steps, *state.shape[axis + 1 :])
    new_state = super().extend_decode_state(
      name, value, time_step - self._prefix_length(), axis
    )
    return _merge_rows(new_state, axis)

  def cached_since(
    self, name: str, time_step: Int[Array, ''] | int, reach: int
  ) -> tuple[Float[Array, '...'], Int[Array, ''] | int]:
    """Returns the suffix, the last `reach` steps of prefixes before it."""
    length = self._prefix_length()
    states = self._with_prefixes(name, reach)
    return states, time_step - length + min(reach, length)

  def _attend_step(
    self,
    query: products.Heads,
    key: products.SourceHeads,
    value: products.SourceHeads,
    mask: Float[Array, '#B #N #T L'],
    bias: Float[Array, '#B N T L'] | None,
    time_step: products.Offset,
  ) -> tuple[products.Heads, Float[Array, 'B N T L']]:
    """Attends to the L steps of prefixes and suffix; `key` is the suffix's."""
    if not self._num_prefixes():
      return super()._attend_step(query, key, value, mask, bias, time_step)
    keys, values = (self._chunks(name) for name in self._attended_names())
    scaled = self._scale_query(query)
    logits = [
      _split_rows(
        self._logits(_share_query(scaled, k.shape[0]), k, 0), query.shape[0]
      )
      for k in keys
    ]
    probs = self._probs(jnp.concatenate(logits, axis=-1), mask, bias)
    probs = self.atten_dropout(probs.astype(key.dtype))
    ends = np.cumsum([k.shape[1] for k in keys])[:-1]
    encoded = [
      self._average(_share_probs(part, v.shape[0]), v).reshape(query.shape)
      for part, v in zip(jnp.split(probs, ends, -1), values, strict=True)
    ]
    return self._shard_heads(sum(encoded[1:], encoded[0])), probs

  def _chunks(self, name: str) -> list[Array]:
    """Returns the prefixes and the suffix, each [rows, time, ...]."""
    chunks = [*self._prefixes(name), self.get_decode_state(name)]
    return [_merge_rows(chunk, i + 1) for i, chunk in enumerate(chunks)]

  def _with_prefixes(self, name: str, size: int) -> Float[Array, '...']:
    """Returns the suffixes after the last `size` steps of their prefixes."""
    *prefixes, suffix = self._chunks(name)
    joined = [suffix]
    for chunk in reversed(prefixes):
      taken = min(size, chunk.shape[1])
      size -= taken
      last = chunk[:, chunk.shape[1] - taken :]
      samples = suffix.shape[0] // chunk.shape[0]
      joined.insert(0, jnp.repeat(last, samples, axis=0))
    return jnp.concatenate(joined, axis=1)

  def _cached(self) -> dict[str, Array]:
    cached = self.variables.get(base_layer.DECODE_CACHE, {})
    return {k: v for k, v in cached.items() if isinstance(v, jax.Array)}

  def _prefixes(self, name: str) -> list[Array]:
    return [
      self.get_variable(PREFIX_DECODE_CACHE, _chunk_name(name, i))
      for i in range(self._num_prefixes())
    ]

  def _num_prefixes(self) -> int:
    frozen = self.variables.get(PREFIX_DECODE_CACHE, {})
    count = 0
    while _chunk_name('key_state', count) in frozen:
      count += 1
    return count

  def _prefix_length(self) -> int:
    prefixes = self._prefixes('key_state')
    return sum(chunk.shape[i + 1] for i, chunk in enumerate(prefixes))

  def _time_dim(self) -> int:
    return cache.TIME_DIM + self._num_prefixes()


class DotProductAttentionWithLPB(LazyPrefix, dot_product.DotProductAttention):
  """Dot-product attention with lazy prefix broadcast.

  It computes what DotProductAttention does and reads the cache of a prompt once
  for all of its samples. Needs fprop_for_prefix in decoding.
  """


def _chunk_name(name: str, i: int) -> str:
  return f'{name}_{i}_pfx'


def _merge_rows(x: Array, time_dim: int) -> Array:
  return x.reshape(math.prod(x.shape[:time_dim]), *x.shape[time_dim:])


def _share_query(query: Array, rows: int) -> Float[Array, 'C R N H']:
  """Moves the samples that share a chunk's row to the axis of its steps."""
  return query.reshape(rows, -1, *query.shape[2:])


def _split_rows(
  logits: Float[Array, 'C N R S'], batch: int
) -> Float[Array, 'B N L S']:
  """Moves samples back to the batch."""
  rows, heads, _, length = logits.shape
  logits = logits.reshape(rows, heads, batch // rows, -1, length)
  return jnp.moveaxis(logits, 2, 1).reshape(batch, heads, -1, length)


def _share_probs(
  probs: Float[Array, 'B N L S'], rows: int
) -> Float[Array, 'C N R S']:
  """Moves the samples that share a chunk's row to the axis of its steps."""
  _, heads, steps, length = probs.shape
  probs = probs.reshape(rows, -1, heads, steps, length)
  return jnp.moveaxis(probs, 1, 2).reshape(rows, heads, -1, length)
