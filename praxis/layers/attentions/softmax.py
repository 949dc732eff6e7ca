# SPDX-License-Identifier: Apache-2.0
"""The softmax of attention: masked, in float32."""

from __future__ import annotations

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
  if extra_logit is None:
    probs = jax.nn.softmax(masked, axis=-1)
  else:
    probs = _softmax_with_extra_logit(masked, extra_logit)
  if zero_fully_masked:
    nothing = jnp.all(masks.is_hidden(mask), axis=-1, keepdims=True)
    probs = jnp.where(nothing, 0.0, probs)
  return probs


def _softmax_with_extra_logit(
  logits: Float[Array, '*B S'], extra_logit: float
) -> Float[Array, '*B S']:
  largest = jnp.maximum(jnp.max(logits, axis=-1, keepdims=True), extra_logit)
  largest = jax.lax.stop_gradient(largest)
  exps = jnp.exp(logits - largest)
  total = jnp.sum(exps, axis=-1, keepdims=True)
  return exps / (total + jnp.exp(extra_logit - largest))
