# SPDX-License-Identifier: Apache-2.0
"""Early stopping by the metrics of a step."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from absl import logging
from jax.typing import ArrayLike

from pax.checkpoints import paths
from pax.programs.program import DecodeProgramOutput, EvalProgramOutput
from pax.programs.running_mode import RunningMode
from pax.steps import WeightedScalars

_ALWAYS_FETCHES = 'PAXML_EARLY_STOP_ALWAYS_AGGREGATE_TRAIN_METRICS'

# (metrics, RunningMode, step, whether it is the last checkpoint, checkpoint
# directory) -> whether to stop.
EarlyStoppingFn = Callable[
  [Mapping[str, float], RunningMode, int, bool, str | None], bool
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalResults:
  """Metrics of one training step or of one checkpoint."""

  # Weighted scalars of the training step; None where they are not fetched.
  train: WeightedScalars | None = None
  # Metrics of the evaluation on a training batch.
  eval_train: Mapping[str, float] | None = None
  # Outputs of eval and decode programs by name of their input.
  evals: Mapping[str, EvalProgramOutput] = dataclasses.field(
    default_factory=dict
  )
  decodes: Mapping[str, DecodeProgramOutput] = dataclasses.field(
    default_factory=dict
  )
  # Scalars of the job: `num_params`, `train_steps_per_sec`.
  job_scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def metrics(self) -> dict[str, float]:
    """Returns all metrics under the names that tuning uses.

    `train/<metric>`, `eval_train/metrics/<metric>`,
    `eval_test_<input>/metrics/<metric>`, `eval_test_<input>/scoring_eval/...`,
    `decode_test_<input>/<metric>`, the scalars of the job, and
    `eval_steps_per_sec` and `decode_steps_per_sec`, the means over inputs.
    """
    groups: dict[str, Mapping[str, ArrayLike] | None] = {
      'train': {k: v[0] for k, v in (self.train or {}).items()},
      'eval_train/metrics': self.eval_train,
    }
    for name, output in self.evals.items():
      groups[f'eval_test_{name}/metrics'] = output.eval_metrics
      groups[f'eval_test_{name}/scoring_eval'] = output.eval_scoring_metrics
    merged = _flatten(groups)
    for name, decoded in self.decodes.items():
      for metrics in (
        decoded.decode_metrics,
        decoded.processed_decode_metrics,
        decoded.seqio_metrics,
      ):
        merged |= _flatten({f'decode_test_{name}': metrics})
    for kind, outputs in (('eval', self.evals), ('decode', self.decodes)):
      speeds = [o.steps_per_sec for o in outputs.values() if o.steps_per_sec]
      if speeds:
        merged[f'{kind}_steps_per_sec'] = statistics.fmean(speeds)
    return merged | {name: float(x) for name, x in self.job_scalars.items()}


class EarlyStopping(Protocol):
  """Decides whether a job ends before its last step."""

  # Whether `should_stop` reads the results; if not, they need not be computed.
  is_active: bool
  # Whether only the last step counts as the last evaluation.
  trains_to_end: bool

  def should_stop(self, step: int, is_last: bool, results: EvalResults) -> bool:
    """Returns whether to stop after `step`."""


class NoopEarlyStopping:
  """Never stops."""

  is_active = False
  trains_to_end = False

  def should_stop(self, step: int, is_last: bool, results: EvalResults) -> bool:
    return False


class FunctionEarlyStopping:
  """Calls an early stopping function."""

  is_active = True

  def __init__(self, early_stopping_fn: EarlyStoppingFn, job_log_dir: str):
    self._early_stopping_fn = early_stopping_fn
    self.trains_to_end = bool(getattr(early_stopping_fn, 'train_to_end', False))
    self._checkpoint_dir = str(paths.checkpoints_folder(job_log_dir))

  def should_stop(self, step: int, is_last: bool, results: EvalResults) -> bool:
    return call_early_stopping_fn(
      self._early_stopping_fn, step, is_last, results, self._checkpoint_dir
    )


def create_early_stopping(
  early_stopping_fn: EarlyStoppingFn | None, job_log_dir: str
) -> EarlyStopping:
  """Returns the policy of a job; without a function it never stops."""
  if early_stopping_fn is None:
    return NoopEarlyStopping()
  return FunctionEarlyStopping(early_stopping_fn, job_log_dir)


def needs_train_metrics(is_last: bool, results: EvalResults) -> bool:
  """Returns whether an early stopping function gets the training metrics.

  Fetching them waits for the training step, so they come only at the last step
  and with other metrics; at every step if the environment variable
  PAXML_EARLY_STOP_ALWAYS_AGGREGATE_TRAIN_METRICS is `true`.
  """
  if os.environ.get(_ALWAYS_FETCHES) == 'true':
    return True
  return is_last or bool(results.evals) or bool(results.decodes)


def call_early_stopping_fn(
  early_stopping_fn: EarlyStoppingFn,
  step: int,
  is_last: bool,
  results: EvalResults,
  checkpoint_dir: str | None,
) -> bool:
  """Returns whether the function stops the job at these results.

  Args:
    early_stopping_fn: The function of the task.
    step: Number of training steps.
    is_last: Whether no later evaluation follows.
    results: The metrics.
    checkpoint_dir: The directory of the checkpoints.
  """
  metrics = results.metrics()
  mode = RunningMode.detect(
    has_train_metrics='train_steps_per_sec' in results.job_scalars,
    has_eval_metrics=bool(results.evals),
    has_decode_metrics=bool(results.decodes),
  )
  stops = bool(early_stopping_fn(metrics, mode, step, is_last, checkpoint_dir))
  if stops:
    logging.info('Stopped early at step %d: %s', step, metrics)
  return stops


def is_last_checkpoint(
  running_mode: RunningMode,
  global_step: int,
  num_train_steps: int,
  eval_interval_steps: int,
  decode_interval_steps: int,
  save_interval_steps: int,
  train_to_end: bool = False,
) -> bool:
  """Returns whether no later step has metrics of these kinds.

  A training job evaluates its state in memory; other jobs need a checkpoint.

  Args:
    running_mode: The kinds of metrics.
    global_step: The step.
    num_train_steps: The last step.
    eval_interval_steps: Steps between evaluations.
    decode_interval_steps: Steps between decodings.
    save_interval_steps: Steps between checkpoints.
    train_to_end: Whether only the last step counts.
  """
  steps_left = num_train_steps - global_step
  if steps_left <= 0 or train_to_end:
    return steps_left <= 0
  save_interval = 0 if running_mode.has_train else save_interval_steps
  is_last_eval = running_mode.has_eval and steps_left < max(
    eval_interval_steps, save_interval
  )
  is_last_decode = running_mode.has_decode and steps_left < max(
    decode_interval_steps, save_interval
  )
  return is_last_eval or is_last_decode


def _flatten(
  groups: Mapping[str, Mapping[str, ArrayLike] | None],
) -> dict[str, float]:
  return {
    f'{prefix}/{name}': float(np.asarray(value))
    for prefix, metrics in groups.items()
    for name, value in (metrics or {}).items()
  }
