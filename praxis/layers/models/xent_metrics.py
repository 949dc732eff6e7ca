# SPDX-License-Identifier: Apache-2.0
"""The metrics of models that predict one label a position."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.nested_map import NestedMap


def compute_xent_loss_helper(
  predictions: NestedMap,
  input_batch: NestedMap,
  return_predictions: bool,
  apply_eval_sample_weights: bool = False,
  report_strict_acc: bool = False,
) -> tuple[NestedMap, NestedMap]:
  """Returns the metrics, name -> (value, weight), and outputs by example.

  Losses are in nats a token; the weight is the number of predicted tokens.

  Args:
    predictions: what a TransformerLm or TransformerEncoderDecoder predicts.
    input_batch: has labels and weights, [B, T], perhaps eval_sample_weights,
      [B].
    return_predictions: whether the predictions are the outputs by example, in
      place of labels and scores, the log probabilities of the sequences.
    apply_eval_sample_weights: whether weights are multiplied by those of
      examples.
    report_strict_acc: whether acc_strict, the share of examples without a wrong
      token, is among the metrics. Its weight is the number of examples.
  """
  labels = input_batch.labels
  weights = label_weights(input_batch, apply_eval_sample_weights)
  is_right = predictions.per_example_argmax == labels
  metrics = weighted_scalars(predictions, is_right, weights)
  if report_strict_acc:
    rows = input_batch.get('eval_sample_weights', jnp.any(weights > 0, axis=-1))
    metrics.acc_strict = strict_accuracy(is_right, weights, rows)
  if return_predictions:
    return metrics, predictions
  per_example = NestedMap(labels=labels, scores=-predictions.per_sequence_xent)
  if 'eval_sample_weights' in input_batch:
    per_example.eval_sample_weights = input_batch.eval_sample_weights
  return metrics, per_example


def label_weights(
  batch: NestedMap, apply_eval_sample_weights: bool
) -> Float[Array, 'B T']:
  """Returns the weights of a batch's tokens, times those of examples if asked.

  Raises:
    ValueError: the batch has no eval_sample_weights.
  """
  if not apply_eval_sample_weights:
    return batch.weights
  if 'eval_sample_weights' not in batch:
    raise ValueError(
      "a batch needs 'eval_sample_weights' with apply_eval_sample_weights, got "
      f'{sorted(batch)}'
    )
  return batch.weights * batch.eval_sample_weights[:, None]


def weighted_scalars(
  predictions: NestedMap, is_right: Array, weights: Float[Array, 'B T']
) -> NestedMap:
  """Returns the losses, the accuracy and the number of predictions."""
  num_preds = predictions.total_weight
  one = jnp.ones((), num_preds.dtype)
  num_right = jnp.sum(is_right * weights.astype(jnp.float32))
  xent = predictions.avg_xent, predictions.get('avg_xent_weight', num_preds)
  return NestedMap(
    total_loss=(predictions.total_loss, num_preds),
    avg_xent=xent,
    aux_loss=(predictions.aux_loss, one),
    log_pplx=xent,
    fraction_of_correct_next_step_preds=(
      num_right / jnp.maximum(num_preds, 1.0),
      num_preds,
    ),
    num_predictions=(num_preds, one),
  )


def strict_accuracy(
  is_right: Array, weights: Float[Array, 'B T'], rows: Array
) -> tuple[Float[Array, ''], Float[Array, '']]:
  """Returns the share of `rows` without a wrong token, and their number."""
  all_right = ~jnp.any((weights > 0) & ~is_right, axis=-1)
  rows = rows.astype(jnp.float32)
  num_rows = jnp.sum(rows)
  num_right = jnp.sum(jnp.where(rows > 0, all_right, False))
  return num_right / jnp.maximum(num_rows, 1.0), num_rows
