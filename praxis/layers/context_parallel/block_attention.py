# SPDX-License-Identifier: Apache-2.0
"""Attention to one block of keys after the other, and its gradient.

What queries have seen so far is kept as a sum of values, a sum of weights and
the largest logit, all float32, which the next block corrects.

Shapes: B batch, T queries, C keys of a block, N = K · G heads of queries, K
heads of keys and values, H head. Queries are [B, T, K, G, H] here.

References: Online normalizer calculation for softmax,
https://arxiv.org/abs/1805.02867; FlashAttention,
https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from praxis.layers.attentions import masks

_Queries = Float[Array, 'B T K G H']
_Keys = Float[Array, 'B C K H']
_Hidden = Bool[Array, '#B #T C']
_Weights = Float[Array, 'B T K G C']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logits:
  """How logits come from the products of queries and keys."""

  # They are multiplied by this, then
  scale: float = 1.0
  # kept within ± this number by a tanh; 0 leaves them.
  cap: float = 0.0
  # A logit that takes part in the softmax and contributes no value.
  extra: float | None = None


class Seen(NamedTuple):
  """What queries have seen so far."""

  # Sum of values, each times e^(logit - largest).
  values: Float[Array, 'B T K G H']
  # Sum of these weights.
  total: Float[Array, 'B T K G']
  # The largest logit.
  largest: Float[Array, 'B T K G']

  def mean(self) -> Float[Array, 'B T K G H']:
    """Returns the attended values."""
    return self.values / self.total[..., jnp.newaxis]

  def log_total(self) -> Float[Array, 'B T K G']:
    """Returns the logarithm of the sum of e^logit."""
    return self.largest + jnp.log(self.total)


class Gradients(NamedTuple):
  """What a block adds to the gradients, in float32."""

  query: _Queries
  key: _Keys
  value: _Keys


def nothing(query: _Queries, options: Logits) -> Seen:
  """Returns what queries have seen before the first block."""
  shape = query.shape[:-1]
  largest, total = -jnp.inf, 0.0
  if options.extra is not None:
    largest, total = options.extra, 1.0
  return Seen(
    values=jnp.zeros(query.shape, jnp.float32),
    total=jnp.full(shape, total, jnp.float32),
    largest=jnp.full(shape, largest, jnp.float32),
  )


def see(
  seen: Seen,
  query: _Queries,
  key: _Keys,
  value: _Keys,
  hidden: _Hidden,
  options: Logits,
) -> Seen:
  """Returns what queries have seen after one more block."""
  logits = _masked(_logits(query, key, options), hidden)
  largest = jnp.maximum(seen.largest, jnp.max(logits, axis=-1))
  weights = jnp.exp(logits - largest[..., jnp.newaxis])
  before = jnp.exp(seen.largest - largest)
  return Seen(
    values=seen.values * before[..., jnp.newaxis] + _mix(weights, value),
    total=seen.total * before + jnp.sum(weights, axis=-1),
    largest=largest,
  )


class Backward(NamedTuple):
  """What the gradient of queries needs of the forward pass."""

  query: _Queries
  # Logarithm of the sum of e^logit over all keys.
  log_total: Float[Array, 'B T K G']
  # Gradient of the attended values, and its product with them.
  gradient: Float[Array, 'B T K G H']
  along: Float[Array, 'B T K G']


def differentiate(
  back: Backward,
  key: _Keys,
  value: _Keys,
  hidden: _Hidden,
  options: Logits,
) -> Gradients:
  """Returns what one block adds; its weights are computed again."""
  logits = _logits(back.query, key, options)
  masked = _masked(logits, hidden)
  weights = jnp.exp(masked - back.log_total[..., jnp.newaxis])
  of_weights = _product(back.gradient, value)
  of_logits = weights * (of_weights - back.along[..., jnp.newaxis])
  of_logits = jnp.where(_columns(hidden), 0.0, of_logits)
  if options.cap:
    of_logits *= 1.0 - jnp.square(logits / options.cap)
  of_logits *= options.scale
  return Gradients(
    query=_mix(of_logits, key),
    key=_gather(of_logits, back.query),
    value=_gather(weights, back.gradient),
  )


def _logits(query: _Queries, key: _Keys, options: Logits) -> _Weights:
  logits = _product(query, key) * options.scale
  if options.cap:
    logits = options.cap * jnp.tanh(logits / options.cap)
  return logits


def _masked(logits: _Weights, hidden: _Hidden) -> _Weights:
  low = masks.large_negative(jnp.float32)
  return jnp.where(_columns(hidden), low, logits)


def _columns(hidden: _Hidden) -> Bool[Array, '#B #T 1 1 C']:
  return hidden[:, :, jnp.newaxis, jnp.newaxis]


def _product(query: _Queries, key: _Keys) -> _Weights:
  return jnp.einsum(
    'BTKGH,BCKH->BTKGC', query, key, preferred_element_type=jnp.float32
  )


def _mix(weights: _Weights, value: _Keys) -> _Queries:
  return jnp.einsum(
    'BTKGC,BCKH->BTKGH',
    weights.astype(value.dtype),
    value,
    preferred_element_type=jnp.float32,
  )


def _gather(weights: _Weights, query: _Queries) -> _Keys:
  return jnp.einsum(
    'BTKGC,BTKGH->BCKH',
    weights.astype(query.dtype),
    query,
    preferred_element_type=jnp.float32,
  )
