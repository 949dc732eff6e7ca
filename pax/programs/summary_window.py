# SPDX-License-Identifier: Apache-2.0
"""Means of training summaries over the steps since the last summaries.

Their sums are saved with each checkpoint, so that a job that resumes between
two summaries writes the same means as one that was not interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import jax

from pax import summaries
from pax.files import side_files
from pax.programs.metric_accumulator import MetricAccumulator
from pax.steps import StepOutput
from praxis.pytypes import NestedMap

FILE = 'summary_sums.json'
# Sums of this many checkpoints are kept, for those that are set aside.
_MAX_CHECKPOINTS = 20
# Key of the weighted scalars of the last step.
_LAST = 'last'


@dataclasses.dataclass
class SummaryWindow:
  """Outputs of steps, and the sums of those before a restart."""

  # The devices may still be computing them.
  outputs: list[StepOutput] = dataclasses.field(default_factory=list)
  # `MetricAccumulator.sums` of the steps before.
  sums: dict[str, Any] = dataclasses.field(default_factory=dict)

  def __bool__(self) -> bool:
    return bool(self.outputs or self.sums)

  def last_scalars(self) -> dict[str, float]:
    """Returns the weighted scalars of the last step; waits for it."""
    if not self.outputs:
      return self.sums[_LAST]
    pairs = self.outputs[-1].weighted_scalars.items()
    return {name: float(value) for name, (value, _) in pairs}

  def means(self) -> dict[str, Any]:
    """Returns summaries by tag; waits for the steps."""
    if len(self.outputs) == 1 and not self.sums:
      return summaries.tags.step_summaries(self.outputs[0])
    accumulator = self._accumulated()
    return {
      summaries.tags.LOSS: accumulator.loss,
      **summaries.tags.weighted_scalars(accumulator.metrics),
      **accumulator.layer_summaries,
      **accumulator.media,
    }

  def saved_sums(self) -> dict[str, Any]:
    """Returns values of JSON for `sums` after a restart; waits for the steps.

    Images, audio, texts and histograms are not among them.
    """
    return {**self._accumulated().sums(), _LAST: self.last_scalars()}

  def _accumulated(self) -> MetricAccumulator:
    accumulator = MetricAccumulator(sums=self.sums)
    for output in self.outputs:
      accumulator.add(output, NestedMap())
    accumulator.finish()
    return accumulator


def save(job_log_dir: str, step: int, window: SummaryWindow) -> None:
  """Writes the sums of a checkpoint, in process 0; waits for the steps.

  Args:
    job_log_dir: The job directory.
    step: The step of the checkpoint.
    window: The outputs since the last summaries.
  """
  if jax.process_index():
    return
  path = pathlib.Path(job_log_dir) / FILE
  # Later steps are those of an earlier run, and are computed again.
  saved = {s: sums for s, sums in _read(path).items() if int(s) < step}
  if window:
    saved[str(step)] = window.saved_sums()
  newest = sorted(saved, key=int)[-_MAX_CHECKPOINTS:]
  text = json.dumps({s: saved[s] for s in newest})
  side_files.write_text(path, f'{text}\n')


def restore(job_log_dir: str, step: int) -> SummaryWindow:
  """Returns the sums of the steps before a checkpoint, if there are any.

  Args:
    job_log_dir: The job directory.
    step: The step of the checkpoint.
  """
  saved = _read(pathlib.Path(job_log_dir) / FILE)
  return SummaryWindow(sums=saved.get(str(step), {}))


def _read(path: pathlib.Path) -> dict[str, Any]:
  return side_files.read_json(path, _parse) or {}


def _parse(value: Any) -> dict[str, Any]:
  for step, sums in value.items():
    int(step)
    MetricAccumulator(sums=sums)
    side_files.check_fields(sums, {_LAST: dict})
  return value
