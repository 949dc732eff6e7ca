# SPDX-License-Identifier: Apache-2.0
"""Detects non-finite and skipped steps, and ends a run that diverged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from pax.partitioning import nonfinite
from pax.programs.jobs import TrainJob
from pax.programs.program import TrainProgramOutput, TrainState
from pax.steps import Batch, StepOutput
from pax.summaries import tags
from pax.tasks_lib.hparams import DetectNan
from praxis import base_layer
from praxis.pytypes import NestedMap

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

  def start(self, output: TrainProgramOutput) -> Callable[[], StepStatus]:
    """Starts copies to the host; returns a function that waits for them."""
    loss, values = output.loss, None
    if isinstance(output.step_output, StepOutput):
      scalars = output.step_output.scalars
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


class _NonfiniteSteps(NamedTuple):
  """Consecutive non-finite steps: the first of them and its batch."""

  step: int
  batch: Batch


class DivergenceMonitor:
  """Counts non-finite steps, and reports a run that diverged.

  Its decisions depend on replicated outputs and step numbers only, so all
  processes decide alike.
  """

  def __init__(self, job: TrainJob):
    self._job = job
    train = job.task.train
    # Copied: reading a Config at every step is slow.
    self._limit = train.max_consecutive_nonfinite_steps
    self._mode = DetectNan(train.detect_nan)
    self.counts = StepCounts()
    self._current: _NonfiniteSteps | None = None
    self._has_located = False
    self.has_diverged = False
    # The last checkpoint before the current non-finite steps.
    self._checkpoint = job.checkpointer.latest_step()
    self._pinned: int | None = None

  def finish_step(self, step: int, status: StepStatus, batch: Batch) -> None:
    """Takes the status of a step that is done.

    Args:
      step: Number of the step.
      status: Its status.
      batch: Its global batch, which is kept while steps are non-finite.
    """
    self.counts = self.counts.after(status)
    if self.has_diverged:
      return
    if status.is_finite:
      self._current = None
    elif self._current is None:
      self._current = _NonfiniteSteps(step, batch)
      logging.warning(
        'Step %d has a non-finite loss or gradient%s',
        step,
        ' and is skipped' if status.is_skipped else '',
      )
    num = self.counts.consecutive_nonfinite
    if self._limit and num >= self._limit:
      self.has_diverged = True

  def may_save(self, step: int, state: TrainState) -> bool:
    """Returns whether to save a state; pins the last checkpoint before NaN.

    All steps before `step` must be finished. Between non-finite steps a state
    is saved only if it is finite.

    Args:
      step: The step that the state enters.
      state: The train state.
    """
    checkpointer = self._job.checkpointer
    if self._current is None:
      self._checkpoint = step
      if self._pinned is not None:
        checkpointer.unpin(self._pinned)
        self._pinned = None
      return True
    if self._checkpoint is not None:
      self._pinned = self._checkpoint
      checkpointer.pin(self._pinned)
    mesh = self._job.partitioner.mesh
    names = nonfinite.nonfinite_arrays(state, NestedMap(), mesh)
    if names:
      logging.warning(
        'The state of step %d is not saved, because it is not finite: %s',
        step,
        nonfinite.shorten(names),
      )
    return not names

  def locate_first(self, state: TrainState) -> None:
    """With `detect_nan=first`, locates the first non-finite step of the run."""
    if self._mode is not DetectNan.FIRST or self._has_located:
      return
    if self._current is not None:
      text = self._locate(state, self._current)
      self._job.progress.print(f'step {self._current.step}: {text}')

  def report(self, state: TrainState) -> None:
    """Prints when the run diverged, where, and how to go back."""
    steps = self._current
    if steps is None:
      return
    self._job.progress.print(
      f'The run diverged: {self._limit} steps in a row, since step'
      f' {steps.step}, had a non-finite loss or gradient;'
      f' {self._checkpoint_text()}'
    )
    if self._mode is not DetectNan.OFF and not self._has_located:
      self._job.progress.print(self._locate(state, steps))
    if self._checkpoint is not None:
      self._job.checkpointer.pin(self._checkpoint, permanently=True)
    self._job.progress.print(self._advice())

  def _locate(self, state: TrainState, first: _NonfiniteSteps) -> str:
    """Runs a step again; returns its first NaN or inf."""
    self._has_located = True
    step, batch = first
    try:
      report = self._job.train_program.locate_nonfinite(state, step, batch)
    except Exception as e:  # It must not hide that the run diverged.
      logging.warning('Locating the NaN failed', exc_info=True)
      return f'The first NaN or inf could not be located: {e}'
    if report is None:
      return 'The train program cannot locate the first NaN or inf'
    if not report:
      return (
        f'Step {step} is finite when it is run again from the present state:'
        ' the NaN is not reproducible, or the state has changed'
      )
    return f'The first NaN or inf of step {step}: {report}'

  def _checkpoint_text(self) -> str:
    if self._checkpoint is None:
      return 'there is no checkpoint before them'
    return f'the last checkpoint before them, step {self._checkpoint}, is kept'

  def _advice(self) -> str:
    job_log_dir, checkpointer = self._job.job_log_dir, self._job.checkpointer
    checkpointer.wait()
    newest = checkpointer.latest_step()
    if newest is None:
      return 'Started again, this job starts from step 0'
    text = f'Started again, this job continues from step {newest}'
    if self._checkpoint in (None, newest):
      return text
    return (
      f'{text}. To continue from step {self._checkpoint}, move the newer'
      f' checkpoints out of {job_log_dir}/checkpoints first. A new job takes'
      f' its variables with --init_from={job_log_dir}@{self._checkpoint}'
    )
