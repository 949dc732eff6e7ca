# SPDX-License-Identifier: Apache-2.0
"""The weighted scalars that language models report."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.nested_map import NestedMap


def weighted_scalars(
  predictions: NestedMap,
  labels: Int[Array, 'B T'],
  weights: Float[Array, 'B T'],
) -> NestedMap:
  """Returns name -> (value, weight) for what a TransformerLm predicts.

  Losses are in nats a token; the weight is the number of predicted tokens.
  """
  num_preds = predictions.total_weight
  is_right = (predictions.per_example_argmax == labels).astype(jnp.float32)
  num_right = jnp.sum(is_right * weights.astype(jnp.float32))
  one = jnp.asarray(1.0, num_preds.dtype)
  return NestedMap(
    total_loss=(predictions.total_loss, num_preds),
    avg_xent=(predictions.avg_xent, num_preds),
    aux_loss=(predictions.aux_loss, one),
    log_pplx=(predictions.avg_xent, num_preds),
    fraction_of_correct_next_step_preds=(
      num_right / jnp.maximum(num_preds, 1.0),
      num_preds,
    ),
    num_predictions=(num_preds, one),
  )


def strict_accuracy(
  predictions: NestedMap,
  labels: Int[Array, 'B T'],
  weights: Float[Array, 'B T'],
) -> tuple[Float[Array, ''], Float[Array, '']]:
  """Returns the share of rows without a wrong token, and how many rows count.

  A row counts if one of its tokens has a weight.
  """
  counts = weights > 0
  is_wrong = counts & (predictions.per_example_argmax != labels)
  has_tokens = jnp.any(counts, axis=-1)
  all_right = has_tokens & ~jnp.any(is_wrong, axis=-1)
  num_rows = jnp.sum(has_tokens.astype(jnp.float32))
  num_right = jnp.sum(all_right.astype(jnp.float32))
  return num_right / jnp.maximum(num_rows, 1.0), num_rows
