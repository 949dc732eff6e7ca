# SPDX-License-Identifier: Apache-2.0
"""The training loop."""

from __future__ import annotations

import gc
import pathlib
from collections.abc import Callable

import jax
from absl import logging

from pax import garbage_collection, io_utils, summaries
from pax.inputs import prefetch
from pax.programs import program
from pax.programs.jobs import Outcome, TrainJob
from pax.programs.periodic_eval import PeriodicEval
from pax.programs.stopping.preemption import PreemptedError
from pax.programs.train_metrics import TrainMetricsReporter
from pax.steps import Batch
from pax.summaries import profile_summary

goodput = summaries.goodput


def train(job: TrainJob) -> Outcome:
  """Trains from the state of the job to the last step, or until a signal.

  A checkpoint holds the state that enters a step and the input state before the
  batch of that step, so that a restored job takes the same batch. All
  randomness derives from one key and the step number.
  """
  io_utils.clear_training_end(job.job_log_dir)
  batches = prefetch.Prefetcher(
    job.train_input, transform=_placement(job), stop_monitor=job.preemption
  )
  with batches:
    loop = _TrainLoop(job, batches)
    try:
      outcome = loop.run()
    except PreemptedError:
      outcome = Outcome.PREEMPTED
    outcome = loop.finish(outcome)
  if outcome.is_finished:
    job.goodput.mark_finished()
  if outcome in (Outcome.OUT_OF_DATA, Outcome.STOPPED_EARLY):
    # Jobs that follow the checkpoints would wait for the last step.
    io_utils.record_training_end(job.job_log_dir, loop.step)
  return outcome


def _placement(job: TrainJob) -> Callable[[Batch], Batch] | None:
  """Returns the transfer of batches, None if the program transfers them."""
  if job.train_program.reads_host_batches:
    return None
  partitioner, train_input = job.partitioner, job.train_input

  def place(batch: Batch) -> Batch:
    specs = partitioner.input_partition_specs(batch)
    return program.place_batch(partitioner, train_input, batch, specs)

  return place


class _TrainLoop:
  """State, step, and the order of operations on them."""

  def __init__(self, job: TrainJob, batches: prefetch.Prefetcher):
    self._job = job
    self._batches = batches
    self._program = job.train_program
    self._program.writer = job.writer
    self._program.is_reported = True
    self._program.setup(
      job.task,
      batches,
      job.partitioner,
      pathlib.Path(job.job_log_dir),
      jax.random.key(job.task.train.random_seed),
      jax.random.key(job.task.evaluate.random_seed),
      job.step,
      job.enable_summary_writer,
    )
    self._reporter = TrainMetricsReporter(job)
    self._periodic_eval = PeriodicEval(job, self._reporter)
    self._gc_interval = job.task.train.gc_interval_steps
    self.state, self.step = job.state, job.step

  def run(self) -> Outcome:
    """Trains until a reason to stop, which it returns.

    The order matters: save, check for stop, batch, step, report, evaluate.
    """
    job, train_program = self._job, self._program
    job.goodput.mark_resumed(self.step)
    if self._periodic_eval.run_interrupted(self.step, self.state):
      return Outcome.STOPPED_EARLY
    while True:
      if self._reporter.divergence.has_diverged:
        return Outcome.DIVERGED
      if train_program.is_resumable(self.step):
        self._save(force=job.preemption.save_requested())
        if not train_program.should_run(self.state, self.step):
          self._report_if_finished()
          return Outcome.DONE
        if job.preemption.stop_requested():
          return Outcome.PREEMPTED
        with (
          job.goodput.record(goodput.INPUT_WAIT),
          jax.profiler.TraceAnnotation(profile_summary.INPUT_WAIT),
        ):
          next_batch = self._batches.peek()
        if next_batch is None:
          return Outcome.OUT_OF_DATA
        batch = next_batch
      with job.goodput.record(goodput.STEP):
        with jax.profiler.StepTraceAnnotation(
          profile_summary.STEP, step_num=self.step
        ):
          state = train_program.update_state(self.state, self.step)
          output = train_program.run(state, self.step)
        # While the devices compute the first step.
        garbage_collection.resume()
        self._reporter.add(self.step, output, batch)
      self.state, self.step = output.state, output.new_train_step
      job.goodput.mark_step(self.step)
      self._reporter.divergence.locate_first(self.state)
      if self._gc_interval and self.step % self._gc_interval == 0:
        gc.collect()
      if self._evaluate(output):
        return Outcome.STOPPED_EARLY

  def _report_if_finished(self) -> None:
    """Says why a job that was started again does not train."""
    last = int(self._job.task.train.num_train_steps)
    if self.step and self.step == self._job.step and self.step >= last:
      self._job.progress.print(
        f'step {self.step}: none of {last} steps is left; to go on, increase'
        ' task.train.num_train_steps'
      )

  def finish(self, outcome: Outcome) -> Outcome:
    """Saves the last state; evaluates and reports it unless preempted.

    Of a run that diverged no state is saved: its checkpoints are older.
    """
    job = self._job
    with job.goodput.record(goodput.STEP):
      self._reporter.drain()
    job.preemption.begin_saving()
    if self._reporter.divergence.has_diverged:
      outcome = Outcome.DIVERGED
      self._reporter.divergence.report(self.state)
    else:
      self._save(force=True)
    if outcome.is_finished:
      try:
        with job.goodput.record(goodput.EVAL):
          self._periodic_eval.run_final(self.step, self.state)
          self._reporter.finish(self.step, self.state)
      except PreemptedError:
        outcome = Outcome.PREEMPTED
    job.preemption.begin_saving()
    with job.goodput.record(goodput.CHECKPOINT):
      job.checkpointer.wait()
    self._program.shutdown()
    job.eval_runner.shutdown()
    return outcome

  def _evaluate(self, output: program.TrainProgramOutput) -> bool:
    """Runs the evaluations that are due; returns whether to stop training.

    A job of one process whose evaluation fails saves its state. Of several
    processes one may fail alone, and saving waits for all of them.
    """
    try:
      return self._periodic_eval.run_due(self.step, output)
    except PreemptedError:
      raise
    except Exception:
      if jax.process_count() == 1:
        self._save_after_error()
      raise

  def _save_after_error(self) -> None:
    try:
      self._save(force=True)
      self._job.checkpointer.wait()
    # The error of the evaluation is the one to report.
    except Exception:
      logging.exception('The state of step %d cannot be saved', self.step)

  def _save(self, *, force: bool = False) -> None:
    checkpointer, divergence = self._job.checkpointer, self._reporter.divergence
    with self._job.goodput.record(goodput.CHECKPOINT):
      if checkpointer.is_due(self.step, force=force):
        # The copy of the state to the host waits for these steps, too.
        self._reporter.finish_steps()
        if not divergence.may_save(self.step, self.state):
          return
        self._reporter.save_accumulators(self.step)
      is_saved = checkpointer.save(
        self.step, self.state, prefetch.state_of(self._batches), force=force
      )
    if is_saved:
      self._job.goodput.mark_saved(self.step)
