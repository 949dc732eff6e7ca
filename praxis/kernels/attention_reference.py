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
  # A logit that is only in the denominator.
  extra_logit: float | None = None

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
    if self.extra_logit is not None and not math.isfinite(self.extra_logit):
      raise ValueError(
        f'extra_logit must be finite or None, got {self.extra_logit}'
      )


def forward(
  query: Float[Array, 'B T N H'],
  key: Float[Array, 'B T K H'],
  value: Float[Array, 'B T K H'],
  segment_ids: Int[Array, 'B T'],
  spec: Spec,
) -> tuple[Float[Array, 'B T N H'], Float[Array, 'B N T']]:
  """Returns the attended values and the logsumexp of the logits, in float32.

  The extra logit is one of them.
  """
  batch, length, num_heads, dims = query.shape
  num_groups = num_heads // key.shape[2]
  grouped = query.reshape(batch, length, key.shape[2], num_groups, dims)
  logits = jnp.einsum(
    'BTKGH,BSKH->BKGTS', grouped, key, preferred_element_type=jnp.float32
  )
  if spec.soft_cap > 0:
    logits = spec.soft_cap * jnp.tanh(logits / spec.soft_cap)
  visible = is_visible(segment_ids, spec)[:, None, None]
  logits = jnp.where(visible, logits, -jnp.inf)
  logsumexp = jax.nn.logsumexp(logits, axis=-1)
  if spec.extra_logit is not None:
    logsumexp = jnp.logaddexp(logsumexp, spec.extra_logit)
  probs = jnp.exp(logits - logsumexp[..., None])
  out = jnp.einsum('BKGTS,BSKH->BTKGH', probs, value.astype(jnp.float32))
  return (
    out.reshape(query.shape).astype(query.dtype),
    logsumexp.reshape(batch, num_heads, length),
  )


def gradient(
  query: Float[Array, 'B T N H'],
  key: Float[Array, 'B T K H'],
  value: Float[Array, 'B T K H'],
  segment_ids: Int[Array, 'B T'],
  dout: Float[Array, 'B T N H'],
  spec: Spec,
) -> tuple[Array, Array, Array]:
  """Returns the gradients of queries, keys and values."""

  def out(query: Array, key: Array, value: Array) -> Array:
    return forward(query, key, value, segment_ids, spec)[0]

  return jax.vjp(out, query, key, value)[1](dout)


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
