# SPDX-License-Identifier: Apache-2.0
"""Metrics of models that predict one label per position."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from praxis.nested_map import NestedMap


def compute_xent_loss_helper(
  predictions: NestedMap,
  input_batch: NestedMap,
  return_predictions: bool,
  apply_eval_sample_weights: bool = False,
  report_strict_acc: bool = False,
) -> tuple[NestedMap, NestedMap]:
  """Returns the metrics, name -> (value, weight), and the per-example output.

  Losses are in nats per token, weighted by the number of predicted tokens.

  Args:
    predictions: outputs of a TransformerLm or TransformerEncoderDecoder.
    input_batch: has labels and weights, [B, T], and optionally
      eval_sample_weights, [B].
    return_predictions: whether the per-example output is `predictions`, instead
      of labels and scores, the log-probabilities of the sequences.
    apply_eval_sample_weights: whether token weights are multiplied by
      eval_sample_weights.
    report_strict_acc: whether to add acc_strict, the share of examples without
      a wrong token, weighted by the number of examples.
  """
  labels = input_batch.labels
  weights = label_weights(input_batch, apply_eval_sample_weights)
  is_correct = predictions.per_example_argmax == labels
  metrics = weighted_scalars(predictions, is_correct, weights)
  if report_strict_acc:
    example_weights = input_batch.get(
      'eval_sample_weights', jnp.any(weights > 0, axis=-1)
    )
    metrics.acc_strict = strict_accuracy(is_correct, weights, example_weights)
  if return_predictions:
    return metrics, predictions
  per_example = NestedMap(labels=labels, scores=-predictions.per_sequence_xent)
  if 'eval_sample_weights' in input_batch:
    per_example.eval_sample_weights = input_batch.eval_sample_weights
  return metrics, per_example


def label_weights(
  batch: NestedMap, apply_eval_sample_weights: bool
) -> Float[Array, 'B T']:
  """Returns the token weights of a batch.

  Args:
    batch: has weights, [B, T].
    apply_eval_sample_weights: whether to multiply by eval_sample_weights.

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
  predictions: NestedMap,
  is_correct: Bool[Array, 'B T'],
  weights: Float[Array, 'B T'],
) -> NestedMap:
  """Returns the losses, the accuracy and the number of predictions."""
  num_preds = predictions.total_weight
  unit_weight = jnp.ones((), num_preds.dtype)
  num_correct = jnp.sum(is_correct * weights.astype(jnp.float32))
  xent = predictions.avg_xent, predictions.get('avg_xent_weight', num_preds)
  metrics = NestedMap(
    total_loss=(predictions.total_loss, num_preds),
    avg_xent=xent,
    aux_loss=(predictions.aux_loss, unit_weight),
    log_pplx=xent,
    fraction_of_correct_next_step_preds=(
      num_correct / jnp.maximum(num_preds, 1.0),
      num_preds,
    ),
    num_predictions=(num_preds, unit_weight),
  )
  if 'mtp_loss' in predictions:
    metrics.mtp_loss = predictions.mtp_loss, predictions.mtp_weight
  return metrics


def strict_accuracy(
  is_correct: Bool[Array, 'B T'],
  weights: Float[Array, 'B T'],
  example_weights: Num[Array, ' B'] | Bool[Array, ' B'],
) -> tuple[Float[Array, ''], Float[Array, '']]:
  """Returns the share of examples without a wrong token, and their number."""
  is_all_correct = ~jnp.any((weights > 0) & ~is_correct, axis=-1)
  example_weights = example_weights.astype(jnp.float32)
  num_examples = jnp.sum(example_weights)
  num_correct = jnp.sum(jnp.where(example_weights > 0, is_all_correct, False))
  return num_correct / jnp.maximum(num_examples, 1.0), num_examples
