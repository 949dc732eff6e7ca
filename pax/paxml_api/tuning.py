# SPDX-License-Identifier: Apache-2.0
"""Metrics of evaluations for early stopping functions, and compressed texts."""

from __future__ import annotations

import base64
import dataclasses
import json
import lzma
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pax.paxml_api import metric_values
from pax.programs import early_stopping
from pax.programs.program import DecodeProgramOutput, EvalProgramOutput

# Early stopping does not read the state of an evaluation.
_NO_STATE: Any = None
# Metrics by name for each input; None for an input without such metrics.
_MetricsOfInputs = Sequence[Mapping[str, float] | None]


class EvalMetrics(NamedTuple):
  """Metrics of evaluations, in the order of `input_names`."""

  metrics_list: _MetricsOfInputs | None = None
  scoring_metrics_list: _MetricsOfInputs | None = None
  # Batches per second.
  steps_per_sec: float | None = None
  input_names: Sequence[str] | None = None


class DecodeMetrics(NamedTuple):
  """Metrics of decoding, in the order of `input_names`."""

  metrics_list: _MetricsOfInputs | None = None
  processed_metrics_list: _MetricsOfInputs | None = None
  seqio_metrics_list: _MetricsOfInputs | None = None
  # Batches per second.
  steps_per_sec: float | None = None
  input_names: Sequence[str] | None = None


def should_early_stop(
  early_stop_fn: early_stopping.EarlyStoppingFn | None,
  global_step: int,
  is_last_ckpt: bool,
  train_weighted_scalars: Mapping[str, Any] | None = None,
  eval_train_metrics: Mapping[str, float] | None = None,
  eval_metrics: EvalMetrics | None = None,
  decode_metrics: DecodeMetrics | None = None,
  num_params: float | None = None,
  train_steps_per_sec: float | None = None,
  checkpoint_path: str | None = None,
) -> bool:
  """Returns the verdict of `early_stop_fn` on the metrics of a step.

  Args:
    early_stop_fn: The function of the task; None never stops.
    global_step: The step.
    is_last_ckpt: Whether no later checkpoint is evaluated.
    train_weighted_scalars: A (value, weight) pair of the training step by name,
      or a list of pairs, which is averaged; used only if
      `early_stopping.needs_train_metrics`.
    eval_train_metrics: Metrics of the evaluation on a training batch.
    eval_metrics: Metrics of the evaluations.
    decode_metrics: Metrics of decoding.
    num_params: Number of parameters of the model.
    train_steps_per_sec: Training speed.
    checkpoint_path: Directory of the checkpoints.
  """
  if early_stop_fn is None:
    return False
  numbers = {
    'num_params': num_params,
    'train_steps_per_sec': train_steps_per_sec,
  }
  results = early_stopping.EvalResults(
    eval_train=eval_train_metrics,
    evals=_eval_outputs(eval_metrics or EvalMetrics()),
    decodes=_decode_outputs(decode_metrics or DecodeMetrics()),
    job_scalars={k: v for k, v in numbers.items() if v is not None},
  )
  if early_stopping.needs_train_metrics(is_last_ckpt, results):
    means = metric_values.as_float_dict(train_weighted_scalars or {})
    train = {name: (mean, 1.0) for name, mean in means.items()}
    results = dataclasses.replace(results, train=train)
  return early_stopping.call_early_stopping_fn(
    early_stop_fn, global_step, is_last_ckpt, results, checkpoint_path
  )


def compressed(value: Any) -> str:
  """Returns a JSON value as LZMA-compressed base64 text."""
  packed = lzma.compress(json.dumps(value).encode())
  return base64.b64encode(packed).decode('ascii')


def uncompressed(str_compressed: str) -> str:
  """Returns the JSON text that `compressed` compressed."""
  return lzma.decompress(base64.b64decode(str_compressed)).decode()


def _eval_outputs(metrics: EvalMetrics) -> dict[str, EvalProgramOutput]:
  return {
    name: EvalProgramOutput(
      _NO_STATE,
      eval_metrics=_at(metrics.metrics_list, index),
      eval_scoring_metrics=_at(metrics.scoring_metrics_list, index),
      steps_per_sec=metrics.steps_per_sec,
    )
    for index, name in enumerate(metrics.input_names or ())
  }


def _decode_outputs(metrics: DecodeMetrics) -> dict[str, DecodeProgramOutput]:
  return {
    name: DecodeProgramOutput(
      _NO_STATE,
      decode_metrics=_at(metrics.metrics_list, index),
      processed_decode_metrics=_at(metrics.processed_metrics_list, index),
      seqio_metrics=_at(metrics.seqio_metrics_list, index),
      steps_per_sec=metrics.steps_per_sec,
    )
    for index, name in enumerate(metrics.input_names or ())
  }


def _at(values: _MetricsOfInputs | None, index: int) -> Any:
  return None if values is None else values[index]
