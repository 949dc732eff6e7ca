# SPDX-License-Identifier: Apache-2.0
"""Speed, intervals and divergence in a loop that does not report."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from pax import tasks_lib
from pax.programs import step_status


class DivergedError(FloatingPointError):
  """Too many steps in a row had a non-finite loss or gradient."""


class _InflightStep(NamedTuple):
  """A step that the devices may still be computing."""

  step: int
  loss: jax.Array
  # Waits for the step.
  status: Callable[[], step_status.StepStatus]


class StepReporter:
  """Bounds the steps in flight, measures the speed, detects divergence."""

  def __init__(self, task: tasks_lib.SingleTask, init_step: int):
    """Starts to measure.

    Args:
      task: The task.
      init_step: The first step.
    """
    train = task.train
    # Copied: reading a Config at every step is slow.
    self._max_inflight = train.max_inflight_steps
    self._max_nonfinite = train.max_consecutive_nonfinite_steps
    self._summary_interval = train.summary_interval_steps
    self._speed_interval = train.compute_steps_per_sec_interval_steps
    self._status_reader = step_status.StatusReader(task.learners[0])
    self._inflight: collections.deque[_InflightStep] = collections.deque()
    self._counts = step_status.StepCounts()
    self._measured = (init_step, time.monotonic())

  def add(self, step: int, output: Any) -> None:
    """Takes the output of a step; waits while too many steps are in flight.

    Args:
      step: Number of the step.
      output: The output of its step function, with a `loss`.

    Raises:
      DivergedError: `task.train.max_consecutive_nonfinite_steps` steps in a row
        were not finite.
    """
    status = self._status_reader.start(output.loss, output)
    self._inflight.append(_InflightStep(step, output.loss, status))
    while self._max_inflight and len(self._inflight) > self._max_inflight:
      self._finish_oldest()

  def is_summary_due(self, step: int) -> bool:
    """Returns whether the summaries of a step are written."""
    return step % self._summary_interval == 0

  def measure(self, step: int, interval: int | None = None) -> float | None:
    """Returns steps per second since the last measurement.

    Args:
      step: Number of steps done.
      interval: Steps between measurements; None is that of the task.

    Returns:
      The speed; None between two measurements.
    """
    previous_step, previous_time = self._measured
    if step % (interval or self._speed_interval) or step == previous_step:
      return None
    self._measured = step, time.monotonic()
    return (step - previous_step) / (self._measured[1] - previous_time)

  def wait_for_all(self) -> None:
    """Waits for the steps in flight.

    Raises:
      DivergedError: As of `add`.
    """
    while self._inflight:
      self._finish_oldest()

  def _finish_oldest(self) -> None:
    step, loss, wait_for_status = self._inflight.popleft()
    loss.block_until_ready()
    status = wait_for_status()
    self._counts = self._counts.after(status)
    count = self._counts.consecutive_nonfinite
    if count == 1:
      step_status.warn_nonfinite(step, status)
    if self._max_nonfinite and count >= self._max_nonfinite:
      # The steps in flight end with the loop.
      self._inflight.clear()
      raise DivergedError(
        f'The run diverged: {count} steps in a row, since step'
        f' {step - count + 1}, had a non-finite loss or gradient;'
        ' task.train.max_consecutive_nonfinite_steps=0 continues'
      )
