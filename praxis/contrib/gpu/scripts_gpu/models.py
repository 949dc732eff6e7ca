# SPDX-License-Identifier: Apache-2.0
"""A language model with the accuracy of LAMBADA and BoolQ."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.alias_names import module_getattr
from praxis.layers import models
from praxis.layers.models import xent_metrics
from praxis.nested_map import NestedMap

__getattr__ = module_getattr(__name__)

compute_xent_loss_helper = xent_metrics.compute_xent_loss_helper

_TASKS = (None, 'lambada', 'boolq')


class CustomMetricsLM(models.LanguageModel):
  """A language model that reports the accuracy on an evaluation task.

  References: LAMBADA, https://arxiv.org/abs/1606.06031; BoolQ,
  https://arxiv.org/abs/1905.10044
  """

  # 'lambada' adds acc_strict, the share of examples without a wrong token;
  # 'boolq' adds boolq_acc, the share of labels with a higher logit than the
  # other answer.
  eval_task: str | None = None
  # The ids of "yes" and "no"; required for 'boolq'.
  boolq_yn_tokens: Sequence[int] | Int[Array, '2'] | None = None

  def setup(self) -> None:
    _check_task(self.eval_task, self.boolq_yn_tokens)
    super().setup()

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns metrics with total_loss, and the per-example output."""
    metrics, per_example = compute_xent_loss_helper(
      predictions,
      input_batch,
      self.return_predictions,
      self.apply_eval_sample_weights,
    )
    metrics = compute_eval_metrics_helper(
      metrics,
      predictions,
      input_batch,
      self.apply_eval_sample_weights,
      eval_task=self.eval_task,
      boolq_yn_tokens=self.boolq_yn_tokens,
      report_strict_acc=self.report_strict_acc,
    )
    return metrics, per_example

  def _records_logits(self) -> bool:
    # The loss reads them for this task only.
    return self.return_predictions or self.eval_task == 'boolq'


def compute_eval_metrics_helper(
  metrics: NestedMap,
  predictions: NestedMap,
  input_batch: NestedMap,
  apply_eval_sample_weights: bool = False,
  eval_task: str | None = None,
  boolq_yn_tokens: Sequence[int] | Int[Array, '2'] | None = None,
  report_strict_acc: bool = False,
) -> NestedMap:
  """Returns the metrics and that of a task, weighted by its examples.

  Args:
    metrics: name -> (value, weight).
    predictions: outputs of a TransformerLm; for 'boolq' with logits.
    input_batch: has labels and weights, [B, T], and eval_sample_weights, [B], 0
      for batch padding.
    apply_eval_sample_weights: whether token weights are multiplied by
      eval_sample_weights.
    eval_task: 'lambada', 'boolq' or None.
    boolq_yn_tokens: the ids of "yes" and "no".
    report_strict_acc: the same as eval_task='lambada'.

  Raises:
    ValueError: a metric is asked for without eval_sample_weights.
  """
  _check_task(eval_task, boolq_yn_tokens)
  is_strict = eval_task == 'lambada' or report_strict_acc
  if not is_strict and eval_task is None:
    return metrics
  if 'eval_sample_weights' not in input_batch:
    raise ValueError(
      'the metrics of a task need eval_sample_weights in the batch, got '
      f'{sorted(input_batch)}'
    )
  weights = xent_metrics.label_weights(input_batch, apply_eval_sample_weights)
  weights = weights.astype(jnp.float32)
  if is_strict:
    is_correct = predictions.per_example_argmax == input_batch.labels
    accuracy = xent_metrics.strict_accuracy(
      is_correct, weights, input_batch.eval_sample_weights
    )
    return NestedMap(metrics, acc_strict=accuracy)
  accuracy = _boolq_accuracy(
    predictions, input_batch, weights, jnp.asarray(boolq_yn_tokens)
  )
  return NestedMap(metrics, boolq_acc=accuracy)


def _boolq_accuracy(
  predictions: NestedMap,
  batch: NestedMap,
  weights: Float[Array, 'B T'],
  answers: Int[Array, '2'],
) -> tuple[Float[Array, ''], Float[Array, '']]:
  """Returns the accuracy of yes/no answers, and the number of examples."""
  if 'logits' not in predictions:
    raise ValueError(
      "predictions need logits for eval_task='boolq', got "
      f'{sorted(predictions)}; set record_logits_in_xent_output in lm_tpl'
    )
  labels = batch.labels.astype(answers.dtype)
  logits_of = lambda ids: jnp.take_along_axis(
    predictions.logits, ids[..., None], axis=-1, mode='clip'
  )[..., 0]
  # Other labels than the two answers have weight 0.
  is_correct = logits_of(labels) > logits_of(jnp.sum(answers) - labels)
  num_examples = jnp.sum(batch.eval_sample_weights).astype(jnp.float32)
  num_correct = jnp.sum(is_correct * weights)
  return num_correct / jnp.maximum(num_examples, 1.0), num_examples


def _check_task(
  task: str | None, answers: Sequence[int] | Array | None
) -> None:
  if task not in _TASKS:
    raise ValueError(f'eval_task must be one of {_TASKS}, got {task!r}')
  if task == 'boolq' and (answers is None or len(answers) != 2):
    raise ValueError(
      "eval_task='boolq' needs boolq_yn_tokens, the ids of yes and no, got "
      f'{answers}'
    )
