# SPDX-License-Identifier: Apache-2.0
"""Attention to one block of keys after the other (online softmax).

The softmax over the blocks so far is kept as numerator, denominator and largest
logit, all float32; each further block rescales them.

Shapes: B batch, T queries, C keys of a block, N = K · G heads of queries, K
heads of keys and values, H head dimension. Queries are [B, T, K, G, H] here.

References: Online normalizer calculation for softmax,
https://arxiv.org/abs/1805.02867; FlashAttention,
https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from praxis.layers.attentions import attention_core, masks

LogitTransform = attention_core.LogitTransform

_Queries = Float[Array, 'B T K G H']
_Keys = Float[Array, 'B C K H']
_IsMasked = Bool[Array, '#B #T C']
_Weights = Float[Array, 'B T K G C']


class SoftmaxState(NamedTuple):
  """The online softmax of the queries over the blocks so far."""

  # Sum of values, each times e^(logit - max_logit).
  numerator: Float[Array, 'B T K G H']
  # Sum of these factors.
  denominator: Float[Array, 'B T K G']
  # The largest logit.
  max_logit: Float[Array, 'B T K G']

  def outputs(self) -> Float[Array, 'B T K G H']:
    """Returns the attended values."""
    return self.numerator / self.denominator[..., jnp.newaxis]

  def log_sum_exp(self) -> Float[Array, 'B T K G']:
    """Returns the logarithm of the sum of e^logit."""
    return self.max_logit + jnp.log(self.denominator)


class Gradients(NamedTuple):
  """The gradients that a block of keys adds, in float32."""

  query: _Queries
  key: _Keys
  value: _Keys


def init_softmax_state(
  query: _Queries, transform: LogitTransform
) -> SoftmaxState:
  """Returns the state before the first block."""
  shape = query.shape[:-1]
  max_logit: float | Array = -jnp.inf
  denominator = 0.0
  if transform.extra_logit is not None:
    max_logit, denominator = transform.extra_logit, 1.0
  return SoftmaxState(
    numerator=jnp.zeros(query.shape, jnp.float32),
    denominator=jnp.full(shape, denominator, jnp.float32),
    max_logit=jnp.full(shape, max_logit, jnp.float32),
  )


def attend_to_block(
  state: SoftmaxState,
  query: _Queries,
  key: _Keys,
  value: _Keys,
  is_masked: _IsMasked,
  transform: LogitTransform,
) -> SoftmaxState:
  """Returns the state after one more block of keys and values.

  Args:
    state: after the blocks so far.
    query: scaled.
    key: keys of the block.
    value: values of the block.
    is_masked: which keys of the block each query does not see.
    transform: scale and cap of the logits.
  """
  logits = _mask_logits(_logits(query, key, transform), is_masked)
  max_logit = jnp.maximum(state.max_logit, jnp.max(logits, axis=-1))
  weights = jnp.exp(logits - max_logit[..., jnp.newaxis])
  correction = jnp.exp(state.max_logit - max_logit)
  numerator = state.numerator * correction[..., jnp.newaxis]
  return SoftmaxState(
    numerator=numerator + _weighted_values(weights, value),
    denominator=state.denominator * correction + jnp.sum(weights, axis=-1),
    max_logit=max_logit,
  )


class BackwardInputs(NamedTuple):
  """The inputs of the backward pass that belong to the queries."""

  query: _Queries
  # Logarithm of the softmax's denominator over all keys.
  log_sum_exp: Float[Array, 'B T K G']
  # Gradient of the attended values, and its product with them.
  gradient: Float[Array, 'B T K G H']
  gradient_dot_output: Float[Array, 'B T K G']


def block_gradients(
  inputs: BackwardInputs,
  key: _Keys,
  value: _Keys,
  is_masked: _IsMasked,
  transform: LogitTransform,
) -> Gradients:
  """Returns the gradients that one block adds; its weights are recomputed.

  Args:
    inputs: of the queries.
    key: keys of the block.
    value: values of the block.
    is_masked: which keys of the block each query does not see.
    transform: scale and cap of the logits.
  """
  logits = _logits(inputs.query, key, transform)
  masked = _mask_logits(logits, is_masked)
  probs = jnp.exp(masked - inputs.log_sum_exp[..., jnp.newaxis])
  d_probs = _dot_products(inputs.gradient, value)
  d_logits = probs * (d_probs - inputs.gradient_dot_output[..., jnp.newaxis])
  d_logits = jnp.where(_expand_heads(is_masked), 0.0, d_logits)
  if transform.cap and transform.cap > 0.0:
    d_logits *= 1.0 - jnp.square(logits / transform.cap)
  d_logits *= transform.scale
  return Gradients(
    query=_weighted_values(d_logits, key),
    key=_weighted_queries(d_logits, inputs.query),
    value=_weighted_queries(probs, inputs.gradient),
  )


def _logits(query: _Queries, key: _Keys, transform: LogitTransform) -> _Weights:
  logits = _dot_products(query, key) * transform.scale
  return attention_core.cap_logits(logits, transform.cap)


def _mask_logits(logits: _Weights, is_masked: _IsMasked) -> _Weights:
  masked_value = masks.large_negative(jnp.float32)
  return jnp.where(_expand_heads(is_masked), masked_value, logits)


def _expand_heads(is_masked: _IsMasked) -> Bool[Array, '#B #T 1 1 C']:
  return is_masked[:, :, jnp.newaxis, jnp.newaxis]


def _dot_products(query: _Queries, key: _Keys) -> _Weights:
  return jnp.einsum(
    'BTKGH,BCKH->BTKGC', query, key, preferred_element_type=jnp.float32
  )


def _weighted_values(weights: _Weights, value: _Keys) -> _Queries:
  return jnp.einsum(
    'BTKGC,BCKH->BTKGH',
    weights.astype(value.dtype),
    value,
    preferred_element_type=jnp.float32,
  )


def _weighted_queries(weights: _Weights, query: _Queries) -> _Keys:
  return jnp.einsum(
    'BTKGC,BTKGH->BCKH',
    weights.astype(query.dtype),
    query,
    preferred_element_type=jnp.float32,
  )
