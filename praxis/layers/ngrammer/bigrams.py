# SPDX-License-Identifier: Apache-2.0
"""Ids of bigrams, and how they are hashed into a table."""

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
  """Returns id + vocab_size * id of its partner, 0 where there is none.

  Ids are int64 where JAX has that enabled; int32 ids wrap around, for every run
  alike, where vocab_size squared is too large for them.

  Args:
    ids: the unigrams, below vocab_size.
    vocab_size: how many unigrams there are.
    segment_pos: position in the segment, of packed inputs; the first of a
      segment has no partner.
    pair_ids: position of each id's partner, L for none; absent, the partner is
      the id before.
  """
  if vocab_size <= 0:
    raise ValueError(
      f'vocab_size must be > 0, got {vocab_size}; set unigram_vocab_size'
    )
  ids = jnp.asarray(ids, int)
  if pair_ids is None:
    partners = jnp.pad(ids[:, :-1], ((0, 0), (1, 0)))
  else:
    none_last = jnp.pad(ids, ((0, 0), (0, 1)))
    partners = jnp.take_along_axis(none_last, pair_ids, axis=1)
  if segment_pos is not None:
    partners = jnp.where(segment_pos == 0, 0, partners)
  return ids + partners * vocab_size


def hash_ids(
  ids: Int[Array, '*B'], head: int, num_buckets: int
) -> Int[Array, '*B']:
  """Returns buckets of `ids`, by a hash function that each head has alone."""
  factor = head + 1
  prime = _primes_above(num_buckets, head + 1)[head]
  return (ids * factor + factor) % prime % num_buckets


@functools.cache
def _primes_above(number: int, count: int) -> tuple[int, ...]:
  """Returns the first `count` primes that are larger than `number`."""
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
