# SPDX-License-Identifier: Apache-2.0
"""Attention that stores a shared prompt once for all samples that continue it.

A lazy prefix broadcast freezes the decode cache as a chunk in the collection
PREFIX_DECODE_CACHE and starts an empty cache with an axis of samples and room
for the suffixes. It can be repeated: the samples then become prefixes of new
samples.

    chunk 0: key_state_0_pfx  [B, T0, N, H]
    chunk 1: key_state_1_pfx  [B, n0, T1, N, H]
    suffix:  key_state        [B, n0, n1, T2, N, H]

The inputs of a step have B * n0 * n1 rows. The sequence of a row is the chunks
of its prefixes in order, then its suffix.
"""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.layers.attentions import attention_core, dot_product, kv_cache

PREFIX_DECODE_CACHE = base_layer.PREFIX_DECODE_CACHE

_MAKE_MUTABLE = (
  'add it to `decode.apply_mutable_list` of the task, or to `mutable` of apply'
)


class PrefixKVCache(kv_cache.KVCache):
  """A KVCache of suffixes, with the frozen chunks of their prefixes."""

  @property
  def time_dim(self) -> int:
    return kv_cache.TIME_DIM + self.num_prefixes()

  def num_prefixes(self) -> int:
    """Returns the number of frozen chunks."""
    frozen = self._layer.variables.get(PREFIX_DECODE_CACHE, {})
    count = 0
    while _chunk_name('key_state', count) in frozen:
      count += 1
    return count

  def chunks(self, name: str) -> list[Float[Array, '...']]:
    """Returns the prefixes and the suffix, each [rows, time, ...].

    Prefixes without steps are left out: those of prompts of one token, which
    the first decoding step reads, and those joined with their suffixes.

    Args:
      name: of the cached tensor.
    """
    chunks = [*self._prefixes(name), self.read(name)]
    rows = [_merge_rows(chunk, i + 1) for i, chunk in enumerate(chunks)]
    return [chunk for chunk in rows if chunk.shape[1] > 0]

  def max_length(self) -> int:
    """Returns the number of steps of the prefixes and the suffix."""
    return self._prefix_length() + super().max_length()

  def extend(
    self,
    name: str,
    value: Float[Array, '...'],
    time_step: Int[Array, ''] | int,
    time_dim: int = kv_cache.TIME_DIM,
  ) -> Float[Array, '...']:
    """Writes steps to the suffixes and returns those, [rows, time, ...].

    Args:
      name: of the cached tensor.
      value: one step of each sample, or several with a time axis.
      time_step: index of the (first) step in the whole sequence.
      time_dim: ignored; prefixes decide the time axis.
    """
    state = self.read(name)
    axis = self.time_dim
    # One step of each sample, or several with a time axis.
    steps = value.shape[1] if value.ndim == state.ndim - axis + 1 else 1
    value = value.reshape(*state.shape[:axis], steps, *state.shape[axis + 1 :])
    new_state = super().extend(
      name, value, time_step - self._prefix_length(), axis
    )
    return _merge_rows(new_state, axis)

  def read_with_history(
    self, name: str, time_step: Int[Array, ''] | int, num_steps: int
  ) -> tuple[Float[Array, '...'], Int[Array, ''] | int]:
    """Returns the suffixes after the last `num_steps` of their prefixes."""
    length = self._prefix_length()
    states = self._join_prefixes(name, num_steps)
    return states, time_step - length + min(num_steps, length)

  def broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Freezes the cache as a prefix and starts an empty one for its samples.

    Args:
      num_suffix_samples: number of samples that share what is cached.
      suffix_length: number of steps the new cache has room for.

    Raises:
      ValueError: the collection of prefixes is not mutable.
    """
    if not self._layer.is_mutable_collection(PREFIX_DECODE_CACHE):
      raise ValueError(
        'a lazy broadcast of the prefix needs the mutable collections '
        f'{base_layer.DECODE_CACHE!r} and {PREFIX_DECODE_CACHE!r}, the latter '
        f'is not; {_MAKE_MUTABLE}'
      )
    count = self.num_prefixes()
    for name, state in self.tensors().items():
      self._freeze(_chunk_name(name, count), state)
      lead, tail = state.shape[: count + 1], state.shape[count + 2 :]
      shape = (*lead, num_suffix_samples, suffix_length, *tail)
      self.replace(name, jnp.zeros(shape, state.dtype))

  def right_align_with_prefix(
    self,
    max_prefix_size: int,
    right_align_fn: base_layer.DecodeStateTransformFn,
  ) -> None:
    """Joins suffixes with their prefixes, aligned right, and empties those.

    Args:
      max_prefix_size: number of steps to keep of the prefixes, the last ones.
      right_align_fn: aligns a tensor [rows, time, ...].

    Raises:
      ValueError: the collection of prefixes is not mutable.
    """
    if self.num_prefixes() and not self._layer.is_mutable_collection(
      PREFIX_DECODE_CACHE
    ):
      raise ValueError(
        f'the collection {PREFIX_DECODE_CACHE!r} must be mutable to empty the '
        f'prefixes; {_MAKE_MUTABLE}'
      )
    for name, state in self.tensors().items():
      joined = self._join_prefixes(name, max_prefix_size)
      aligned = right_align_fn(joined, kv_cache.BATCH_DIM, kv_cache.TIME_DIM)
      shape = (*state.shape[: self.time_dim], *aligned.shape[1:])
      self.replace(name, aligned.reshape(shape))
      for i, chunk in enumerate(self._prefixes(name)):
        empty = jax.lax.slice_in_dim(chunk, 0, 0, axis=i + 1)
        self._freeze(_chunk_name(name, i), empty)

  def _freeze(self, chunk_name: str, state: Array) -> None:
    self._layer.put_variable(PREFIX_DECODE_CACHE, chunk_name, state)

  def _prefixes(self, name: str) -> list[Array]:
    return [
      self._layer.get_variable(PREFIX_DECODE_CACHE, _chunk_name(name, i))
      for i in range(self.num_prefixes())
    ]

  def _prefix_length(self) -> int:
    prefixes = self._prefixes('key_state')
    return sum(chunk.shape[i + 1] for i, chunk in enumerate(prefixes))

  def _join_prefixes(self, name: str, num_steps: int) -> Float[Array, '...']:
    """Returns the suffixes after the last `num_steps` of their prefixes."""
    *prefixes, suffix = self.chunks(name)
    joined = [suffix]
    for chunk in reversed(prefixes):
      size = min(num_steps, chunk.shape[1])
      num_steps -= size
      last = chunk[:, chunk.shape[1] - size :]
      samples = suffix.shape[0] // chunk.shape[0]
      joined.insert(0, jnp.repeat(last, samples, axis=0))
    return jnp.concatenate(joined, axis=1)


class DotProductAttentionWithLPB(dot_product.DotProductAttention):
  """Dot-product attention with lazy prefix broadcast.

  It computes the same as DotProductAttention and reads the cache of a prompt
  once for all of its samples. Decoding must set fprop_for_prefix.
  """

  # Prefixes are of decoding steps only.
  has_kernel: ClassVar[bool] = True

  def extend_step(
    self,
    query_vec: Float[Array, 'B *L D'],
    *,
    atten_mask: Float[Array, '...'],
    time_step: Int[Array, ''] | int,
    segment_pos: Int[Array, ' B *L'] | None,
    is_cross_attention: bool = False,
  ) -> Float[Array, 'B *L D']:
    """Returns the attended values; see `DotProductAttention.extend_step`.

    Args:
      query_vec: one or several steps.
      atten_mask: additive; it may be longer than the cache, whose suffix has
        no room for later steps.
      time_step: index of the (first) step.
      segment_pos: positions of the steps.
      is_cross_attention: whether keys and values are those of the forward pass.
    """
    return super().extend_step(
      query_vec,
      atten_mask=atten_mask[..., : self.decoding_state_sequence_length()],
      time_step=time_step,
      segment_pos=segment_pos,
      is_cross_attention=is_cross_attention,
    )

  def _kv_cache(self) -> PrefixKVCache:
    return PrefixKVCache(self)

  def _attend_rows(
    self,
    inputs: attention_core.AttentionInputs,
    first_query: attention_core.Index,
  ) -> tuple[attention_core.QueryHeads, Float[Array, 'B N L S']]:
    """Attends to the chunks of prefixes and suffix with one softmax."""
    cache = self._kv_cache()
    if not cache.num_prefixes():
      return super()._attend_rows(inputs, first_query)
    query, key, _, mask, bias = inputs
    window = self._window()
    if window is not None:
      lengths = query.shape[1], cache.max_length()
      mask = jnp.minimum(mask, window.mask(*lengths, first_query, mask.dtype))
    keys, values = map(cache.chunks, self._cached_names())
    scaled = self._scale_query(query)
    chunk_logits = [self._chunk_logits(scaled, k) for k in keys]
    probs = self._probs(jnp.concatenate(chunk_logits, axis=-1), mask, bias)
    probs = probs.astype(key.dtype)
    ends = np.cumsum([k.shape[1] for k in keys])[:-1]
    chunk_probs = jnp.split(self.atten_dropout(probs), ends, axis=-1)
    first, *others = map(self._attend_to_chunk, chunk_probs, values)
    return self._shard_heads(sum(others, first)), probs

  def _chunk_logits(
    self, query: Float[Array, 'B L N H'], key: Float[Array, 'C S *K H']
  ) -> Float[Array, 'B N L S']:
    folded = attention_core.fold_queries(query, key.shape[0])
    logits = self._logits(folded, key, 0)
    return attention_core.unfold_samples(logits, query.shape[0])

  def _attend_to_chunk(
    self, probs: Float[Array, 'B N L S'], value: Float[Array, 'C S *K H']
  ) -> Float[Array, 'B L N H']:
    batch, heads, steps, _ = probs.shape
    folded = attention_core.fold_samples(probs, value.shape[0])
    encoded = attention_core.attend_to_values(self.pv_einsum, folded, value)
    return encoded.reshape(batch, steps, heads, -1)


def _chunk_name(name: str, i: int) -> str:
  return f'{name}_{i}_pfx'


def _merge_rows(x: Array, time_dim: int) -> Float[Array, '...']:
  """Returns x [rows, time, ...] with all axes before time merged."""
  return x.reshape(math.prod(x.shape[:time_dim]), *x.shape[time_dim:])
