# SPDX-License-Identifier: Apache-2.0
"""Softmax attention of a sequence to itself in jnp, with all logits in memory.

Shapes: B batch, T queries and keys, N heads of queries, K heads of keys and
values, which divide N, G = N / K, H head dimension.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
  """The visible keys and the logits of an attention."""

  # Number of visible keys before and after the query's own position; unlimited
  # when None. A causal mask has 0 keys after it.
  before: int | None = None
  after: int | None = 0
  # c of the soft cap c * tanh(logits / c); 0: no cap.
  soft_cap: float = 0.0

  def __post_init__(self) -> None:
    for name in ('before', 'after'):
      number = getattr(self, name)
      if number is not None and number < 0:
        raise ValueError(
          f'{name} must be at least 0 or None, got {number}: a query sees its '
          'own position'
        )
    # NaN is in no range.
    if not 0 <= self.soft_cap < math.inf:
      raise ValueError(
        f'soft_cap must be at least 0 and finite, got {self.soft_cap}'
      )


def forward(
  query: Float[Array, 'B T N H'],
  key: Float[Array, 'B T K H'],
  value: Float[Array, 'B T K H'],
  segment_ids: Int[Array, 'B T'],
  spec: Spec,
) -> tuple[Float[Array, 'B T N H'], Float[Array, 'B N T']]:
  """Returns the attended values and the logsumexp of the logits, in float32."""
  logits, _ = _logits_and_slope(query, key, spec)
  visible = is_visible(segment_ids, spec)[:, None, None]
  logits = jnp.where(visible, logits, -jnp.inf)
  logsumexp = jax.nn.logsumexp(logits, axis=-1)
  probs = jnp.exp(logits - logsumexp[..., None])
  out = jnp.einsum('BKGTS,BSKH->BTKGH', probs, value.astype(jnp.float32))
  batch, length, num_heads, _ = query.shape
  return (
    out.reshape(query.shape).astype(query.dtype),
    logsumexp.reshape(batch, num_heads, length),
  )


def gradient(
  *operands: Array, spec: Spec
) -> tuple[Float[Array, 'B T N H'], Float[Array, 'B T K H'], Array]:
  """Returns the gradients of queries, keys and values.

  Args:
    *operands: query, key, value and segment_ids, as of `forward`; the gradient
      of the attended values; the logsumexp, which may be that of further
      logits without values; the sums of that gradient times the attended values
      over the head dimension.
    spec: the visible keys and the logits.
  """
  query, key, value, segment_ids, dout, logsumexp, delta = operands
  query_heads = _grouped_shape(query, key)
  grouped_query, grouped_dout = (
    x.astype(jnp.float32).reshape(query_heads) for x in (query, dout)
  )
  logits, slope = _logits_and_slope(query, key, spec)
  visible = is_visible(segment_ids, spec)[:, None, None]
  logsumexp, delta = (
    x.reshape(*logits.shape[:4], 1) for x in (logsumexp, delta)
  )
  probs = jnp.exp(jnp.where(visible, logits, -jnp.inf) - logsumexp)
  dprobs = jnp.einsum('BTKGH,BSKH->BKGTS', grouped_dout, value)
  dlogits = probs * (dprobs - delta) * slope
  dquery = jnp.einsum('BKGTS,BSKH->BTKGH', dlogits, key)
  dkey = jnp.einsum('BKGTS,BTKGH->BSKH', dlogits, grouped_query)
  dvalue = jnp.einsum('BKGTS,BTKGH->BSKH', probs, grouped_dout)
  return (
    dquery.reshape(query.shape).astype(query.dtype),
    dkey.astype(key.dtype),
    dvalue.astype(value.dtype),
  )


def _grouped_shape(
  query: Float[Array, 'B T N H'], key: Float[Array, 'B T K H']
) -> tuple[int, ...]:
  """Returns the shape [B, T, K, G, H] of the queries."""
  batch, length, num_heads, dims = query.shape
  num_groups = num_heads // key.shape[2]
  return batch, length, key.shape[2], num_groups, dims


def _logits_and_slope(
  query: Float[Array, 'B T N H'], key: Float[Array, 'B T K H'], spec: Spec
) -> tuple[Float[Array, 'B K G T S'], Float[Array, 'B K G T S'] | float]:
  """Returns the logits of all pairs, and their derivative by the products."""
  products = jnp.einsum(
    'BTKGH,BSKH->BKGTS',
    query.reshape(_grouped_shape(query, key)),
    key,
    preferred_element_type=jnp.float32,
  )
  if spec.soft_cap == 0:
    return products, 1.0
  logits = spec.soft_cap * jnp.tanh(products / spec.soft_cap)
  return logits, 1.0 - jnp.square(logits / spec.soft_cap)


def is_visible(
  segment_ids: Int[Array, 'B T'], spec: Spec
) -> Bool[Array, 'B T T']:
  """Returns whether each query sees each key."""
  position = jnp.arange(segment_ids.shape[1])
  distance = position - position[:, None]
  visible = segment_ids[:, :, None] == segment_ids[:, None]
  if spec.before is not None:
    visible &= distance >= -spec.before
  if spec.after is not None:
    visible &= distance <= spec.after
  return visible
