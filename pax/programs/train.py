# SPDX-License-Identifier: Apache-2.0
"""The training loop."""

from __future__ import annotations

import gc

import jax

from pax import io_utils, summaries
from pax.inputs import prefetch
from pax.programs.periodic_eval import Interludes
from pax.programs.preemption import StoppedError
from pax.programs.run import Outcome, Run
from pax.programs.train_metrics import Reports

goodput = summaries.goodput


def train(run: Run) -> Outcome:
  """Trains from the run's state to its last step, or until a signal.

  The state that enters a step is saved, with the state of the input before the
  batch of that step: whoever restores it takes the same batch. All randomness
  comes from one key and the number of the step.
  """
  io_utils.forget_training_end(run.job_log_dir)
  batches = prefetch.Prefetcher(
    run.train_input, transform=run.partitioner.put_batch
  )
  with batches:
    loop = _Loop(run, batches)
    try:
      outcome = loop.run_to_the_end()
    except StoppedError:
      outcome = Outcome.PREEMPTED
    outcome = loop.finish(outcome)
  if outcome in (Outcome.OUT_OF_DATA, Outcome.STOPPED_EARLY):
    # Who follows the checkpoints expects the last step, and cannot know.
    io_utils.note_training_end(run.job_log_dir, loop.step)
  return outcome


class _Loop:
  """The state, and what is done to it in which order."""

  def __init__(self, run: Run, batches: prefetch.Prefetcher):
    self._run = run
    self._batches = batches
    self._program = run.train_program
    self._program.setup(
      run.task,
      batches,
      run.partitioner,
      run.job_log_dir,
      jax.random.key(run.task.train.random_seed),
      jax.random.key(run.task.evaluate.random_seed),
    )
    self._reports = Reports(run)
    self._interludes = Interludes(run, self._reports)
    self._gc_interval = run.task.train.gc_interval_steps
    self.state, self.step = run.state, run.step

  def run_to_the_end(self) -> Outcome:
    """Trains until there is a reason not to, which it returns.

    The order matters: save, stop, batch, step, report.
    """
    run, program = self._run, self._program
    ledger = run.ledger
    ledger.resumed(self.step)
    while True:
      self._save()
      if not program.should_run(self.state, self.step):
        return Outcome.DONE
      if run.interrupts.requested():
        return Outcome.PREEMPTED
      with ledger.during(goodput.INPUT_WAIT):
        batch = self._batches.peek()
      if batch is None:
        return Outcome.OUT_OF_DATA
      with ledger.during(goodput.STEP):
        state = program.update_state(self.state, self.step)
        done = program.run(state, self.step)
        self._reports.add(self.step, done)
      self.state, self.step = done.state, done.new_train_step
      ledger.reached(self.step)
      if self._gc_interval and self.step % self._gc_interval == 0:
        gc.collect()
      if self._interludes.after(self.step, done):
        return Outcome.STOPPED_EARLY

  def finish(self, outcome: Outcome) -> Outcome:
    """Saves the last state, and tells of it unless training goes on later."""
    ledger = self._run.ledger
    with ledger.during(goodput.STEP):
      self._reports.drain()
    self._run.interrupts.rest()
    self._save(force=True)
    if outcome is not Outcome.PREEMPTED:
      try:
        with ledger.during(goodput.EVAL):
          self._interludes.conclude(self.step, self.state)
          self._reports.conclude(self.state)
      except StoppedError:
        outcome = Outcome.PREEMPTED
    self._run.interrupts.rest()
    with ledger.during(goodput.CHECKPOINT):
      self._run.checkpointer.wait()
    self._program.shutdown()
    self._run.passes.shutdown()
    return outcome

  def _save(self, *, force: bool = False) -> None:
    ledger = self._run.ledger
    with ledger.during(goodput.CHECKPOINT):
      saved = self._run.checkpointer.save(
        self.step, self.state, prefetch.state_of(self._batches), force=force
      )
    if saved:
      ledger.saved(self.step)
