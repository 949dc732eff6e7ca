# SPDX-License-Identifier: Apache-2.0
"""Evaluation, decoding and early stopping between training steps."""

from __future__ import annotations

import dataclasses

from pax import io_utils, summaries
from pax.programs import (
  early_stopping,
  eval_runner,
  metric_accumulator,
  program,
)
from pax.programs.early_stopping import EvalResults
from pax.programs.jobs import TrainJob
from pax.programs.running_mode import RunningMode
from pax.programs.stopping.preemption import PreemptedError
from pax.programs.train_metrics import TrainMetricsReporter
from pax.programs.train_program import BaseTrainProgram

TrainState = program.TrainState

_EVAL = summaries.goodput.EVAL


class PeriodicEval:
  """Runs the eval and decode programs of a training job when they are due."""

  def __init__(self, job: TrainJob, reporter: TrainMetricsReporter):
    self._job = job
    self._reporter = reporter
    train = job.task.train
    # Copied: reading a Config at every step is slow.
    self._last_step = int(train.num_train_steps)
    self._eval_interval = train.eval_interval_steps
    self._eval_ema = train.eval_use_ema_states
    self._decode_interval = train.decode_interval_steps
    self._decode_start = train.decode_start_after_n_steps
    self._decode_ema = train.decode_use_ema_states
    self._evaluated_step: int | None = None
    self._decoded_step: int | None = None

  def run_interrupted(self, step: int, state: TrainState) -> bool:
    """Runs what a stop of the previous start interrupted at this step.

    Args:
      step: The step of the restored checkpoint.
      state: The restored state.

    Returns:
      Whether to stop training.
    """
    if not step:
      return False
    directory = self._job.job_log_dir
    is_interrupted = io_utils.interrupted_evaluation(directory) == step
    if not metric_accumulator.broadcast_from_first_process(int(is_interrupted)):
      return False
    output = program.TrainProgramOutput(
      state, loss=None, weighted_scalars=None, new_train_step=step
    )
    stops = self.run_due(step, output)
    io_utils.clear_interrupted_evaluation(directory)
    return stops

  def run_due(self, step: int, output: program.TrainProgramOutput) -> bool:
    """Runs the programs that are due; returns whether to stop training.

    Args:
      step: Number of training steps done.
      output: The output of the last step.

    Raises:
      PreemptedError: A stop was requested; the next start repeats them.
    """
    try:
      results = self._run_programs(step, output)
    except PreemptedError:
      io_utils.record_interrupted_evaluation(self._job.job_log_dir, step)
      raise
    if not self._job.early_stopping.is_active:
      return False
    return self._should_stop(step, output, results)

  def _run_programs(
    self, step: int, output: program.TrainProgramOutput
  ) -> EvalResults:
    results = EvalResults(eval_train=output.eval_train_metrics)
    is_eval_train_due = output.eval_train_metrics is None
    if is_eval_train_due and self._is_due(step, self._eval_interval):
      results = self._eval_train(step, output.state)
    if step >= self._last_step or self._is_due(step, self._eval_interval):
      results = self._evaluate(step, output.state, results)
    if self._is_decode_due(step):
      results = self._decode(step, output.state, results)
    return results

  def run_final(self, step: int, state: TrainState) -> None:
    """Evaluates and decodes the last state, unless `run_due` did."""
    if self._evaluated_step != step:
      self._evaluate(step, state, EvalResults())
    if self._decoded_step != step:
      self._decode(step, state, EvalResults())

  def _is_due(self, step: int, interval: int | None) -> bool:
    return step % interval == 0 if interval else False

  def _is_decode_due(self, step: int) -> bool:
    is_due = self._is_due(step, self._decode_interval)
    has_started = step >= self._decode_start
    return (is_due and has_started) or step >= self._last_step

  def _eval_train(self, step: int, state: TrainState) -> EvalResults:
    train_program: BaseTrainProgram = self._job.train_program
    with self._reporter.pause(), self._job.goodput.record(_EVAL):
      output = train_program.run_eval_train(state)
      if output is None:
        return EvalResults()
      means = {k: float(v) for k, (v, _) in output.weighted_scalars.items()}
    self._job.writer.write(
      step, summaries.tags.step_summaries(output), split='eval_train'
    )
    return EvalResults(eval_train=means)

  def _evaluate(
    self, step: int, state: TrainState, results: EvalResults
  ) -> EvalResults:
    self._evaluated_step = step
    if not (self._job.eval_runner.evals and self._eval_interval):
      return results
    with self._reporter.pause(), self._job.goodput.record(_EVAL):
      state = program.get_eval_train_state(
        self._job.task, state, self._eval_ema
      )
      evals = self._job.eval_runner.evaluate(state, step)
    for name, output in evals.items():
      self._reporter.show_metrics(eval_runner.headline_metrics(name, output))
    return dataclasses.replace(results, evals=evals)

  def _decode(
    self, step: int, state: TrainState, results: EvalResults
  ) -> EvalResults:
    self._decoded_step = step
    if not (self._job.eval_runner.decodes and self._decode_interval):
      return results
    with self._reporter.pause(), self._job.goodput.record(_EVAL):
      state = program.get_eval_train_state(
        self._job.task, state, self._decode_ema
      )
      decodes = self._job.eval_runner.decode(state, step)
    return dataclasses.replace(results, decodes=decodes)

  def _should_stop(
    self, step: int, output: program.TrainProgramOutput, results: EvalResults
  ) -> bool:
    is_last = self._is_last(step, results)
    fetches_train = early_stopping.needs_train_metrics(is_last, results)
    results = dataclasses.replace(
      results,
      train=output.weighted_scalars if fetches_train else None,
      job_scalars=self._reporter.job_scalars(),
    )
    return self._job.early_stopping.should_stop(step, is_last, results)

  def _is_last(self, step: int, results: EvalResults) -> bool:
    """Returns whether no later step has metrics of these kinds."""
    return early_stopping.is_last_checkpoint(
      RunningMode.detect(
        has_train_metrics=True,
        has_eval_metrics=bool(results.evals),
        has_decode_metrics=bool(results.decodes),
      ),
      step,
      self._last_step,
      self._eval_interval or 0,
      self._decode_interval or 0,
      save_interval_steps=0,
      train_to_end=self._job.early_stopping.trains_to_end,
    )
