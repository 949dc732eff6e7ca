# SPDX-License-Identifier: Apache-2.0
"""Metrics of classification."""

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
  """Returns the weighted share of labels among the `top_k` largest logits.

  The label is `label_ids`, or the most probable of `label_probs`. A weight sum
  below 1 counts as 1.

  Raises:
    ValueError: there are neither ids nor probabilities.
  """
  if label_ids is None:
    if label_probs is None:
      raise ValueError('label_ids or label_probs must be given, got neither')
    label_ids = jnp.argmax(label_probs, axis=-1)
  if weights is None:
    weights = jnp.ones(logits.shape[:-1])
  threshold = jax.lax.top_k(logits, top_k)[0][..., -1]
  of_label = jnp.take_along_axis(logits, label_ids[..., None], axis=-1)[..., 0]
  is_correct = (of_label >= threshold).astype(jnp.float32)
  total = jnp.maximum(1.0, jnp.sum(weights.astype(jnp.float32)))
  return jnp.sum(is_correct * weights) / total
