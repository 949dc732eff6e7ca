# SPDX-License-Identifier: Apache-2.0
"""Bigram ids and their hash functions."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jaxtyping import Array, Int


def get_bigram_ids(
  ids: Int[Array, 'B L'],
  vocab_size: int,
  segment_pos: Int[Array, 'B L'] | None = None,
  pair_ids: Int[Array, 'B L'] | None = None,
) -> Int[Array, 'B L']:
  """Returns the bigram ids: id + vocab_size * paired id.

  The paired id is 0 for unpaired positions. Ids are int64 if JAX enables x64.
  Otherwise they are int32 and overflow, deterministically, if vocab_size² does
  not fit.

  Args:
    ids: unigram ids in [0, vocab_size).
    vocab_size: number of unigrams.
    segment_pos: position in the segment, for packed inputs; the first position
      of a segment is unpaired.
    pair_ids: position that each position is paired with, L for unpaired; None
      pairs each position with the previous one.

  Raises:
    ValueError: `vocab_size` is not positive.
  """
  if vocab_size <= 0:
    raise ValueError(
      f'vocab_size must be > 0, got {vocab_size}; set unigram_vocab_size'
    )
  ids = jnp.asarray(ids, int)
  if pair_ids is None:
    paired = jnp.pad(ids[:, :-1], ((0, 0), (1, 0)))
  else:
    padded = jnp.pad(ids, ((0, 0), (0, 1)))
    paired = jnp.take_along_axis(padded, pair_ids, axis=1)
  if segment_pos is not None:
    paired = jnp.where(segment_pos == 0, 0, paired)
  return ids + paired * vocab_size


def hash_ids(
  ids: Int[Array, '*B'], head: int, num_buckets: int
) -> Int[Array, '*B']:
  """Returns ((a * id + a) mod p) mod num_buckets with a and p of the head.

  a is head + 1, and p the (head + 1)-th prime above `num_buckets`.
  """
  factor = head + 1
  prime = _primes_above(num_buckets, head + 1)[head]
  return (ids * factor + factor) % prime % num_buckets


@functools.cache
def _primes_above(number: int, count: int) -> tuple[int, ...]:
  """Returns the `count` smallest primes above `number`."""
  primes: list[int] = []
  candidate = number + 1
  while len(primes) < count:
    if _is_prime(candidate):
      primes.append(candidate)
    candidate += 1
  return tuple(primes)


def _is_prime(number: int) -> bool:
  return number > 1 and all(
    number % divisor for divisor in range(2, int(number**0.5) + 1)
  )
