# SPDX-License-Identifier: Apache-2.0
"""Everything a program needs, complete when it is constructed."""

from __future__ import annotations

import dataclasses
import enum
from concurrent import futures
from typing import Any

from absl import logging

from pax import checkpoints, partitioning, summaries, tasks_lib, train_states
from pax.programs import early_stopping as stopping_lib
from pax.programs import eval_runner as passes_lib
from pax.programs import preemption as interrupts_lib
from pax.programs import train_program
from praxis import base_input

TrainState = train_states.TrainState

# How long a failed run waits for the checkpoint that it was writing.
_ABANDON_SECS = 30.0


class Outcome(enum.Enum):
  """How a program ended."""

  DONE = 'done'
  # Stopped by a signal, with the state saved.
  PREEMPTED = 'preempted'
  # The training data came to an end before the last step.
  OUT_OF_DATA = 'out of data'
  # The task's early stopping function said so.
  STOPPED_EARLY = 'stopped early'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One job: the task on its devices, its data, and the two sinks."""

  job_log_dir: str
  # The task on a mesh.
  partitioner: partitioning.Partitioner
  # Trains; it is set up when the loop begins.
  train_program: train_program.BaseTrainProgram
  # The state to begin with, and its step.
  state: TrainState
  step: int
  train_input: base_input.BaseInput
  # What to evaluate and decode while training.
  passes: passes_lib.Passes
  # Whether training ends before the last step.
  stopping: stopping_lib.Stopping
  checkpointer: checkpoints.Checkpointer
  writer: summaries.Writer
  # Counts what time is spent on.
  ledger: summaries.goodput.Ledger
  progress: summaries.Progress
  interrupts: interrupts_lib.Interrupts
  # Writes the description of the run meanwhile.
  describing: futures.Future[None]

  def __enter__(self) -> Run:
    return self

  def __exit__(self, kind: type[BaseException] | None, *unused: Any) -> None:
    """Ends the sinks; raises what they met, unless something else is raised."""
    self.progress.close()
    if kind is None:
      self._close()
    else:
      self._abandon()

  def _close(self) -> None:
    self.describing.result()
    # A checkpoint flushes the writer before it is written.
    try:
      with self.ledger.during(summaries.goodput.CHECKPOINT):
        self.checkpointer.close()
    finally:
      self.writer.close()
      self.ledger.close()

  def _abandon(self) -> None:
    """What was being written may need another process, which is gone."""
    self.ledger.close()
    self.checkpointer.abandon(_ABANDON_SECS)
    try:
      self.writer.close()
    except Exception as e:
      logging.warning('Summaries are incomplete: %s', e)

  @property
  def task(self) -> tasks_lib.SingleTask:
    """What is trained."""
    return self.partitioner.task
