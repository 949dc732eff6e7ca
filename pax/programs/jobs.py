# SPDX-License-Identifier: Apache-2.0
"""Jobs that the runner builds: training, and evaluation of checkpoints.

A job is complete when it is constructed. `train.train` runs a `TrainJob`;
inference has its own `InferJob` in `infer.py`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

from pax import (
  checkpoints,
  io_utils,
  partitioning,
  summaries,
  tasks_lib,
  train_states,
)
from pax.programs import metric_accumulator
from pax.programs.checkpoint_follower import StateSource
from pax.programs.early_stopping import (
  EarlyStopping,
  EarlyStoppingFn,
  EvalResults,
)
from pax.programs.eval_runner import EvalRunner
from pax.programs.stopping.preemption import PreemptedError, PreemptionHandler
from pax.programs.train_program import BaseTrainProgram
from praxis import base_input

TrainState = train_states.TrainState


class Outcome(enum.Enum):
  """How a job ended."""

  DONE = 'done'
  # A signal stopped the job; the state is saved.
  PREEMPTED = 'preempted'
  # The training data ended before the last step.
  OUT_OF_DATA = 'out of data'
  # The early stopping function of the task stopped the job.
  STOPPED_EARLY = 'stopped early'
  # Too many consecutive steps had a non-finite loss or gradient.
  DIVERGED = 'diverged'

  @property
  def is_finished(self) -> bool:
    """Whether the job has done all that it had to do."""
    return self not in (Outcome.PREEMPTED, Outcome.DIVERGED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobCallbacks:
  """Functions of the caller that a job calls."""

  # Decides whether the job ends early; None is the function of the task.
  early_stopping_fn: EarlyStoppingFn | None = None
  # Called with True when the first training step is done.
  first_result_fn: Callable[[bool], None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainJob:
  """Training: the task on its devices, its data and its outputs."""

  job_log_dir: str
  # The task on its mesh.
  partitioner: partitioning.Partitioner
  # The training program; the loop calls its `setup`.
  train_program: BaseTrainProgram
  # The initial or restored state, and its step.
  state: TrainState
  step: int
  train_input: base_input.BaseInput
  # Evaluation and decoding between training steps.
  eval_runner: EvalRunner
  # Decides whether training ends before the last step.
  early_stopping: EarlyStopping
  checkpointer: checkpoints.Checkpointer
  writer: summaries.Writer
  # Accounts for the wall time.
  goodput: summaries.goodput.Recorder
  progress: summaries.Progress
  preemption: PreemptionHandler
  # Whether programs may write summaries of their own.
  enable_summary_writer: bool = True
  # Called when the first step is done; it starts what the step need not await.
  after_first_step: Callable[[], object] = lambda: None

  @property
  def task(self) -> tasks_lib.SingleTask:
    """The task that is trained."""
    return self.partitioner.task


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalJob:
  """Evaluation and decoding of checkpoints."""

  job_log_dir: str
  mode: io_utils.EvaluationMode
  # The task on its devices.
  partitioner: partitioning.Partitioner
  source: StateSource
  # Of the checkpoints and the configuration.
  fingerprint: str = ''
  eval_runner: EvalRunner
  early_stopping: EarlyStopping
  writer: summaries.Writer
  progress: summaries.Progress
  # Called before each checkpoint; an exception ends the job.
  before_checkpoint: Callable[[], None] = lambda: None

  def run(self) -> Outcome:
    """Evaluates and decodes each state of the source."""
    unfinished = io_utils.unfinished_step(self.job_log_dir, self.mode)
    try:
      for step, state, is_last in self.source.states():
        results = self._evaluate(step, state, is_resumed=step == unfinished)
        # Frees the devices for the next state.
        del state
        if self.early_stopping.should_stop(step, is_last, results):
          return Outcome.STOPPED_EARLY
    except PreemptedError:
      return Outcome.PREEMPTED
    finally:
      self.progress.close()
      self.eval_runner.shutdown()
      self.writer.close()
    return Outcome.DONE

  def _evaluate(
    self, step: int, state: TrainState, *, is_resumed: bool
  ) -> EvalResults:
    def is_done(mode: io_utils.EvaluationMode, name: str) -> bool:
      """Whether this job wrote these outputs before it was preempted."""
      file = io_utils.output_file(self.job_log_dir, mode, name, step)
      # Of `.npz` and `.jsonl` the latter is written last.
      last_file = file.with_suffix('.jsonl')
      is_written = is_resumed and io_utils.is_written_since_start(
        self.job_log_dir, self.mode, last_file, step
      )
      return bool(
        metric_accumulator.broadcast_from_first_process(int(is_written))
      )

    self.before_checkpoint()
    with io_utils.checkpoint_progress(
      self.job_log_dir, step, self.mode, self.fingerprint
    ):
      decodes = self.eval_runner.decode(state, step, is_done)
      evals = self.eval_runner.evaluate(state, step, is_done)
    return EvalResults(evals=evals, decodes=decodes)
