# SPDX-License-Identifier: Apache-2.0
"""Metrics of a trial, by the names that `tuning.metrics` matches."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import TypedDict

from pax.summaries import jsonl, tags, writer
from pax.tuning import aggregators, interfaces
from pax.tuning.early_stopping import EarlyStoppingError


class _EvalOptions(TypedDict, total=False):
  """Fields of RunOptions."""

  eval_on_test: bool
  decode_during_train: bool


# Options of a trial by the source of metrics.
OPTIONS: dict[str, _EvalOptions] = {
  'train': {},
  'eval': {'eval_on_test': True},
  'decode': {'eval_on_test': True, 'decode_during_train': True},
}
_SPLITS = {
  'train': ('train',),
  'eval': ('eval_',),
  'decode': ('decode_test_',),
}
# Names of the speeds by split.
_SPEEDS = {
  'train': 'train_steps_per_sec',
  'eval_test_': 'eval_steps_per_sec',
  'decode_test_': 'decode_steps_per_sec',
}
_NOT_METRICS = ('step', 'split', 'time')


@dataclasses.dataclass(frozen=True)
class TrialHistory:
  """The metrics of a trial so far."""

  # For each step with metrics, the latest value of every metric.
  history: Sequence[tuple[int, dict[str, float]]]
  # Raised by the reward to end the trial, if it was.
  signal: EarlyStoppingError | None = None


def read(
  job_log_dirs: Mapping[str, str],
  metrics_from: str,
  reward: interfaces.BaseReward | None,
  *,
  is_running: bool = False,
) -> TrialHistory:
  """Reads the metrics of a trial.

  Args:
    job_log_dirs: directories of the runs by sub-experiment, whose name is a
      suffix of the names of metrics.
    metrics_from: 'train', 'eval' or 'decode': the steps to return.
    reward: computes the metric `reward` of each step.
    is_running: whether the trial may still write metrics of its last step; the
      step is left out while metrics that the step before has are missing.
  """
  history: list[tuple[int, dict[str, float]]] = []
  is_complete = True
  for index, (part, directory) in enumerate(job_log_dirs.items()):
    first = index * aggregators.SUB_EXPERIMENT_STEP_OFFSET
    suffix = f':{part}' if part else ''
    by_step, is_last_complete = _by_step(directory, metrics_from)
    if by_step:
      is_complete = is_last_complete
    for step, metrics in by_step.items():
      named = {f'{name}{suffix}': value for name, value in metrics.items()}
      history.append((first + step, named))
  if is_running and not is_complete:
    history.pop()
  for index, (step, metrics) in enumerate(history):
    if reward and all(m.match_items(metrics) for m in reward.used_metrics):
      try:
        metrics['reward'] = reward(metrics, step)
      except EarlyStoppingError as signal:
        return TrialHistory(history[:index], signal)
  return TrialHistory(history)


def num_bytes(job_log_dirs: Mapping[str, str]) -> int:
  """Returns the size of all files of metrics, which only grows."""
  files = (pathlib.Path(d, writer.METRICS_FILE) for d in job_log_dirs.values())
  return sum(file.stat().st_size for file in files if file.exists())


def _by_step(
  directory: str, metrics_from: str
) -> tuple[dict[int, dict[str, float]], bool]:
  """Returns metrics by step, and whether those of the last step are its own.

  If not, some are of the step before: each input writes its own record.
  """
  latest: dict[str, float] = {}
  # Step of each split of `metrics_from`.
  split_steps: dict[str, int] = {}
  speeds: dict[str, float] = {}
  by_step: dict[int, dict[str, float]] = {}
  path = os.path.join(directory, writer.METRICS_FILE)
  for record in jsonl.read(path, writer.parse_record):
    split, step = record['split'], record['step']
    prefix = f'{split}/metrics/' if split.startswith('eval_') else f'{split}/'
    for tag, value in record.items():
      if tag == tags.NUM_PARAMS:
        latest[tag] = float(value)
      elif tag == tags.STEPS_PER_SEC:
        speeds[split] = float(value)
      elif tag not in _NOT_METRICS:
        latest[prefix + tag.removeprefix(tags.METRICS_PREFIX)] = float(value)
    if split.startswith(_SPLITS[metrics_from]):
      split_steps[split] = step
      # After a restart the same step comes again.
      by_step.pop(step, None)
      by_step[step] = latest | _mean_speeds(speeds)
  return by_step, len(set(split_steps.values())) <= 1


def _mean_speeds(speeds: Mapping[str, float]) -> dict[str, float]:
  """The mean speed over the splits of each kind."""
  by_name = {
    name: [speed for split, speed in speeds.items() if split.startswith(kind)]
    for kind, name in _SPEEDS.items()
  }
  return {
    name: statistics.fmean(values) for name, values in by_name.items() if values
  }
