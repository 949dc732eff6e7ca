# SPDX-License-Identifier: Apache-2.0
"""Classification metrics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped


def top_k_accuracy(
  top_k: int,
  logits: Float[Array, '*B C'],
  label_ids: Int[Array, '*B'] | None = None,
  label_probs: Float[Array, '*B C'] | None = None,
  weights: Shaped[Array, '*B'] | None = None,
) -> Float[Array, '']:
  """Returns the weighted top-k accuracy.

  Args:
    top_k: number of largest logits that count as predictions.
    logits: class logits.
    label_ids: the correct classes.
    label_probs: class probabilities, whose argmax replaces missing label_ids.
    weights: weights of the examples, 1 by default; a sum below 1 counts as 1.

  Raises:
    ValueError: neither label_ids nor label_probs is given.
  """
  if label_ids is None:
    if label_probs is None:
      raise ValueError('label_ids or label_probs must be given, got neither')
    label_ids = jnp.argmax(label_probs, axis=-1)
  if weights is None:
    weights = jnp.ones(logits.shape[:-1])
  threshold = jax.lax.top_k(logits, top_k)[0][..., -1]
  label_logits = jnp.take_along_axis(logits, label_ids[..., None], axis=-1)[
    ..., 0
  ]
  is_correct = (label_logits >= threshold).astype(jnp.float32)
  total = jnp.maximum(1.0, jnp.sum(weights.astype(jnp.float32)))
  return jnp.sum(is_correct * weights) / total
