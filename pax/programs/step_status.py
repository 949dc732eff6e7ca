# SPDX-License-Identifier: Apache-2.0
"""Whether train steps were finite, and whether they were skipped."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from pax.steps import StepOutput
from pax.summaries import tags
from praxis import base_layer

_IS_VALID = 'learning/is_valid_step'
_IS_FINITE = 'learning/is_finite_gradient'
# Host-side summaries of the steps of this process.
CONSECUTIVE_SKIPPED = tags.LocalTag('learning/consecutive_skipped_steps')
CONSECUTIVE_NONFINITE = tags.LocalTag('learning/consecutive_nonfinite_steps')
_SUFFIX = base_layer.get_summary_type_suffix(
  base_layer.SummaryType.AGGREGATE_SCALAR
)
_NAMES = {f'{name}{_SUFFIX}': name for name in (_IS_VALID, _IS_FINITE)}


@dataclasses.dataclass(frozen=True)
class StepStatus:
  """Whether one step was finite, and whether it was skipped."""

  # Whether loss and gradients are finite.
  is_finite: bool
  # Whether the learner left variables and optimizer state unchanged.
  is_skipped: bool


@dataclasses.dataclass(frozen=True)
class StepCounts:
  """Numbers of skipped and non-finite steps of this process."""

  num_skipped: int = 0
  num_nonfinite: int = 0
  # Including the last step; 0 if the last step was not one.
  consecutive_skipped: int = 0
  consecutive_nonfinite: int = 0

  def after(self, status: StepStatus) -> StepCounts:
    """Returns the counts after one more step."""
    skipped, nonfinite = status.is_skipped, not status.is_finite
    return StepCounts(
      self.num_skipped + skipped,
      self.num_nonfinite + nonfinite,
      (self.consecutive_skipped + 1) * skipped,
      (self.consecutive_nonfinite + 1) * nonfinite,
    )

  def progress_metrics(self) -> dict[str, int]:
    """Returns the counts of the progress line that are not zero."""
    counts = {
      'skipped': self.num_skipped,
      'non-finite': self.num_nonfinite,
      'in a row': max(self.consecutive_skipped, self.consecutive_nonfinite),
    }
    return {name: count for name, count in counts.items() if count}


class StatusReader:
  """Reads the statuses of steps without waiting for the newest ones."""

  def __init__(self, learner: Any):
    """Takes the learner of the task, which decides which steps it skips."""
    self._skips = (
      learner.check_valid_step
      and learner.enable_skip_step_on_gradient_anomalies
    )
    self._names: Any = None
    self._indices: dict[str, int] = {}

  def start(
    self, loss: jax.Array | None, step_output: Any
  ) -> Callable[[], StepStatus]:
    """Starts copies to the host; returns a function that waits for them.

    Args:
      loss: The loss of a step, None if it has none.
      step_output: Its output. Without the summaries of a `StepOutput`, the loss
        alone determines the status.
    """
    values = None
    if isinstance(step_output, StepOutput):
      scalars = step_output.scalars
      values = scalars.values
      if scalars.names is not self._names:
        self._names = scalars.names
        self._indices = {
          _NAMES[name]: i
          for i, (_, name) in enumerate(scalars.names)
          if name in _NAMES
        }
    for array in (loss, values):
      if isinstance(array, jax.Array):
        array.copy_to_host_async()
    return functools.partial(self._read, loss, values, self._indices)

  def _read(
    self, loss: Any, values: Any, indices: Mapping[str, int]
  ) -> StepStatus:
    on_host = np.asarray(values) if indices and values is not None else ()
    flags = {name: bool(on_host[i]) for name, i in indices.items()}
    is_valid = flags.get(_IS_VALID, True)
    is_finite = flags.get(_IS_FINITE, is_valid)
    if loss is not None:
      is_finite = is_finite and bool(np.isfinite(np.asarray(loss)).all())
    return StepStatus(is_finite, self._skips and not is_valid)


def warn_nonfinite(step: int, status: StepStatus) -> None:
  """Logs the first of consecutive non-finite steps."""
  logging.warning(
    'Step %d has a non-finite loss or gradient%s',
    step,
    ' and is skipped' if status.is_skipped else '',
  )


def count_scalars(
  counts: StepCounts, pending: Iterable[Callable[[], StepStatus]]
) -> dict[str, float]:
  """Returns the summaries of the last of the pending steps; waits for them.

  Args:
    counts: The counts before the pending steps.
    pending: Functions that wait for the statuses of steps.
  """
  for status in pending:
    counts = counts.after(status())
  return {
    CONSECUTIVE_SKIPPED: float(counts.consecutive_skipped),
    CONSECUTIVE_NONFINITE: float(counts.consecutive_nonfinite),
  }
