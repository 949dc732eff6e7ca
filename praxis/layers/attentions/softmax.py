# SPDX-License-Identifier: Apache-2.0
"""The softmax of attention: masked, in float32."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.layers.attentions import masks


def masked_softmax(
  logits: Float[Array, '*B S'],
  mask: Float[Array, '*#B #S'],
  *,
  extra_logit: float | None = None,
  zero_fully_masked: bool = False,
) -> Float[Array, '*B S']:
  """Returns float32 probabilities over the visible positions.

  Args:
    logits: of any float type.
    mask: additive; see masks.py.
    extra_logit: takes part in the sum and gets no probability in the result.
    zero_fully_masked: whether rows that see nothing become 0; else they are
      uniform.
  """
  masked = masks.apply_mask(logits.astype(jnp.float32), mask)
  probs = softmax(masked, extra_logit)
  if zero_fully_masked:
    nothing = jnp.all(masks.is_hidden(mask), axis=-1, keepdims=True)
    probs = jnp.where(nothing, 0.0, probs)
  return probs


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def softmax(
  logits: Float[Array, '*B S'], extra_logit: float | None = None
) -> Float[Array, '*B S']:
  """Returns the softmax over the last axis.

  Its gradient needs the result only, where that of its parts would keep the
  exponentials too, and take more passes over them.

  Args:
    logits: of any float type.
    extra_logit: takes part in the sum and gets no probability in the result.
  """
  largest = jnp.max(logits, axis=-1, keepdims=True)
  if extra_logit is not None:
    largest = jnp.maximum(largest, extra_logit)
  exps = jnp.exp(logits - largest)
  total = jnp.sum(exps, axis=-1, keepdims=True)
  if extra_logit is not None:
    total += jnp.exp(extra_logit - largest)
  return exps / total


@softmax.defjvp
def _softmax_jvp(
  extra_logit: float | None, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
  """Returns p and dp = p (dx - Σ p dx), with an extra logit or without."""
  (logits,), (tangent,) = primals, tangents
  probs = softmax(logits, extra_logit)
  mean = jnp.sum(probs * tangent, axis=-1, keepdims=True)
  return probs, probs * (tangent - mean)
