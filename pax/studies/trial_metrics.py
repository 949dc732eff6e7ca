# SPDX-License-Identifier: Apache-2.0
"""What a trial measured, under the names that metrics look for."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from pax.summaries import jsonl, tags, writer
from pax.tuning import aggregators, interfaces
from pax.tuning.early_stopping import EarlyStoppingError

# What a trial does in order to measure, by where metrics are from.
OPTIONS: dict[str, dict[str, bool]] = {
  'train': {},
  'eval': {'eval_on_test': True},
  'decode': {'eval_on_test': True, 'decode_during_train': True},
}
_SPLITS = {
  'train': ('train',),
  'eval': ('eval_',),
  'decode': ('decode_test_',),
}
# Where there are speeds, and what they are called.
_SPEEDS = {
  'train': 'train_steps_per_sec',
  'eval_test_': 'eval_steps_per_sec',
  'decode_test_': 'decode_steps_per_sec',
}
_OTHERS = ('step', 'split', 'time')


@dataclasses.dataclass(frozen=True)
class Measured:
  """What is known of a trial."""

  # All that was known at each step that was measured.
  history: Sequence[tuple[int, dict[str, float]]]
  # How the reward ended the trial, if it did.
  signal: EarlyStoppingError | None = None


def read(
  job_log_dirs: Mapping[str, str],
  metrics_from: str,
  reward: interfaces.BaseReward | None,
) -> Measured:
  """Returns what was known at each step that `metrics_from` measured.

  What is computed of a step's metrics is among them, as `reward`.

  Args:
    job_log_dirs: The directories of the runs of the trial, by their names,
      which the names of metrics end in.
    metrics_from: 'train', 'eval' or 'decode'.
    reward: What is computed.
  """
  found: list[tuple[int, dict[str, float]]] = []
  for index, (part, directory) in enumerate(job_log_dirs.items()):
    first = index * aggregators.SUB_EXPERIMENT_STEP_OFFSET
    end = f':{part}' if part else ''
    for step, metrics in _by_step(directory, metrics_from).items():
      named = {f'{name}{end}': value for name, value in metrics.items()}
      found.append((first + step, named))
  for index, (step, metrics) in enumerate(found):
    if reward and all(m.match_items(metrics) for m in reward.used_metrics):
      try:
        metrics['reward'] = reward(metrics, step)
      except EarlyStoppingError as signal:
        return Measured(found[:index], signal)
  return Measured(found)


def size(job_log_dirs: Mapping[str, str]) -> int:
  """Returns how many bytes there are to read; more when there is news."""
  files = (pathlib.Path(d, writer.METRICS_FILE) for d in job_log_dirs.values())
  return sum(file.stat().st_size for file in files if file.exists())


def _by_step(directory: str, metrics_from: str) -> dict[int, dict[str, float]]:
  known: dict[str, float] = {}
  speeds: dict[str, float] = {}
  found: dict[int, dict[str, float]] = {}
  for record in jsonl.read(os.path.join(directory, writer.METRICS_FILE)):
    split, step = record['split'], record['step']
    prefix = f'{split}/metrics/' if split.startswith('eval_') else f'{split}/'
    for tag, value in record.items():
      if tag == tags.NUM_PARAMS:
        known[tag] = float(value)
      elif tag == tags.STEPS_PER_SEC:
        speeds[split] = float(value)
      elif tag not in _OTHERS:
        known[prefix + tag.removeprefix(tags.METRICS_PREFIX)] = float(value)
    if split.startswith(_SPLITS[metrics_from]):
      # What comes again after a restart is newer.
      found.pop(step, None)
      found[step] = known | _means(speeds)
  return found


def _means(speeds: Mapping[str, float]) -> dict[str, float]:
  """The mean speed of each kind of split."""
  kinds = {
    name: [speed for split, speed in speeds.items() if split.startswith(kind)]
    for kind, name in _SPEEDS.items()
  }
  return {
    name: statistics.fmean(found) for name, found in kinds.items() if found
  }
