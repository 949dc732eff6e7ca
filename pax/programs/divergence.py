# SPDX-License-Identifier: Apache-2.0
"""Detects non-finite and skipped steps, and ends a run that diverged."""

from __future__ import annotations

from typing import NamedTuple

from absl import logging

from pax.files import working_copy
from pax.partitioning import nonfinite
from pax.programs import step_status
from pax.programs.jobs import TrainJob
from pax.programs.program import TrainState
from pax.programs.step_status import StepCounts, StepStatus
from pax.steps import Batch
from pax.tasks_lib.hparams import DetectNan
from praxis.pytypes import NestedMap


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
      step_status.warn_nonfinite(step, status)
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
    except Exception as e:  # An error here must not hide the divergence.
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
    job_log_dir = working_copy.origin(self._job.job_log_dir)
    checkpointer = self._job.checkpointer
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
