# SPDX-License-Identifier: Apache-2.0
"""Early stopping: the metrics of a step by their names, and the verdict."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from absl import logging

from pax.checkpoints import paths
from pax.programs.program import DecodeProgramOutput, EvalProgramOutput
from pax.programs.running_mode import RunningMode

EarlyStoppingFn = Callable[[Mapping[str, float], Any, int, bool, str], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
  """What is known after a step, or of a checkpoint."""

  # Weighted scalars of the step, where it is time to look at them.
  train: Mapping[str, Any] | None = None
  # Metrics of the evaluation on a training batch.
  eval_train: Mapping[str, float] | None = None
  # What programs returned, by the name of their input.
  evals: Mapping[str, EvalProgramOutput] = dataclasses.field(
    default_factory=dict
  )
  decodes: Mapping[str, DecodeProgramOutput] = dataclasses.field(
    default_factory=dict
  )
  # Speeds and sizes, as `num_params`.
  numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def metrics(self) -> dict[str, float]:
    """All metrics by the names that tuning knows them by.

    `train/<metric>`, `eval_train/metrics/<metric>`,
    `eval_test_<input>/metrics/<metric>`, `eval_test_<input>/scoring_eval/...`,
    `decode_test_<input>/<metric>`, the numbers, and `eval_steps_per_sec` and
    `decode_steps_per_sec`, the means over inputs.
    """
    groups: dict[str, Mapping[str, Any] | None] = {
      'train': self.train and {k: v[0] for k, v in self.train.items()},
      'eval_train/metrics': self.eval_train,
    }
    for name, out in self.evals.items():
      groups[f'eval_test_{name}/metrics'] = out.eval_metrics
      groups[f'eval_test_{name}/scoring_eval'] = out.eval_scoring_metrics
    merged = _flat(groups)
    for name, decoded in self.decodes.items():
      for part in (
        decoded.decode_metrics,
        decoded.processed_decode_metrics,
        decoded.seqio_metrics,
      ):
        merged |= _flat({f'decode_test_{name}': part})
    for kind, outs in (('eval', self.evals), ('decode', self.decodes)):
      speeds = [out.steps_per_sec for out in outs.values() if out.steps_per_sec]
      if speeds:
        merged[f'{kind}_steps_per_sec'] = statistics.fmean(speeds)
    return merged | {name: float(x) for name, x in self.numbers.items()}


class Stopping(Protocol):
  """Decides whether a job ends before its last step."""

  # Whether it looks at anything.
  is_active: bool

  def should_stop(self, step: int, is_last: bool, found: Found) -> bool:
    """Whether to stop after `step`."""


class NeverStops:
  """Goes on to the last step."""

  is_active = False

  def should_stop(self, step: int, is_last: bool, found: Found) -> bool:
    return False


class EarlyStopping:
  """Asks the function of a task."""

  is_active = True

  def __init__(self, stops: EarlyStoppingFn, job_log_dir: str):
    self._stops = stops
    self._checkpoints = f'{job_log_dir}/{paths.CHECKPOINTS}'

  def should_stop(self, step: int, is_last: bool, found: Found) -> bool:
    return ask(self._stops, step, is_last, found, self._checkpoints)


def create_stopping(
  stops: EarlyStoppingFn | None, job_log_dir: str
) -> Stopping:
  """Returns what decides; without a function a job goes on to its end."""
  return EarlyStopping(stops, job_log_dir) if stops else NeverStops()


def ask(
  stops: EarlyStoppingFn,
  step: int,
  is_last: bool,
  found: Found,
  checkpoints: str | None,
) -> bool:
  """Returns what the function of a task says of what was found."""
  metrics = found.metrics()
  mode = RunningMode.detect(
    has_train_metrics='train_steps_per_sec' in found.numbers,
    has_eval_metrics=bool(found.evals),
    has_decode_metrics=bool(found.decodes),
  )
  is_over = bool(stops(metrics, mode, step, is_last, checkpoints))
  if is_over:
    logging.info('Stopped early at step %d: %s', step, metrics)
  return is_over


def is_last_checkpoint(
  running_mode: RunningMode,
  global_step: int,
  num_train_steps: int,
  eval_interval_steps: int,
  decode_interval_steps: int,
  save_interval_steps: int,
  train_to_end: bool = False,
) -> bool:
  """Returns whether nothing of the kind comes after this step.

  A job that trains evaluates what it has; another one waits for a checkpoint.
  """
  left = num_train_steps - global_step
  if left <= 0 or train_to_end:
    return left <= 0
  saves = 0 if running_mode.has_train else save_interval_steps
  last_eval = running_mode.has_eval and left < max(eval_interval_steps, saves)
  last_decode = running_mode.has_decode and left < max(
    decode_interval_steps, saves
  )
  return last_eval or last_decode


def _flat(groups: Mapping[str, Mapping[str, Any] | None]) -> dict[str, float]:
  return {
    f'{prefix}/{name}': float(value)
    for prefix, metrics in groups.items()
    for name, value in (metrics or {}).items()
  }
