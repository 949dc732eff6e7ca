# SPDX-License-Identifier: Apache-2.0
"""What happens between steps of training: evaluation, decoding, a verdict."""

from __future__ import annotations

import dataclasses

from pax import summaries
from pax.programs import early_stopping, program
from pax.programs import eval_runner as passes_lib
from pax.programs.early_stopping import Found
from pax.programs.run import Run
from pax.programs.running_mode import RunningMode
from pax.programs.train_metrics import Reports
from pax.programs.train_program import BaseTrainProgram

TrainState = program.TrainState

_EVAL = summaries.goodput.EVAL


class Interludes:
  """Runs the other programs of a training job when they are due."""

  def __init__(self, run: Run, reports: Reports):
    self._run = run
    self._reports = reports
    train = run.task.train
    # Read once: this is asked at every step.
    self._last_step = int(train.num_train_steps)
    self._eval_interval = train.eval_interval_steps
    self._eval_ema = train.eval_use_ema_states
    self._decode_interval = train.decode_interval_steps
    self._decode_start = train.decode_start_after_n_steps
    self._decode_ema = train.decode_use_ema_states
    self._evaluated_step: int | None = None

  def after(self, step: int, done: program.TrainProgramOutput) -> bool:
    """Does what is due when `step` steps are done; says whether to stop."""
    found = Found(eval_train=done.eval_train_metrics)
    if self._is_due(step, self._eval_interval):
      found = self._eval_train(step, done.state)
    if step >= self._last_step or self._is_due(step, self._eval_interval):
      found = self._evaluate(step, done.state, found)
    if self._is_time_to_decode(step):
      found = self._decode(step, done.state, found)
    if not self._run.stopping.is_active:
      return False
    return self._should_stop(step, done, found)

  def conclude(self, step: int, state: TrainState) -> None:
    """Evaluates the last state, unless that is done."""
    if self._evaluated_step != step:
      self._evaluate(step, state, Found())

  def _is_due(self, step: int, interval: int | None) -> bool:
    return bool(interval) and step % interval == 0

  def _is_time_to_decode(self, step: int) -> bool:
    if not (self._run.passes.decodes and self._decode_interval):
      return False
    is_due = self._is_due(step, self._decode_interval)
    begun = step >= self._decode_start
    return (is_due and begun) or step >= self._last_step

  def _eval_train(self, step: int, state: TrainState) -> Found:
    train_program: BaseTrainProgram = self._run.train_program
    with self._reports.pause(), self._run.ledger.during(_EVAL):
      output = train_program.run_eval_train(state)
      if output is None:
        return Found()
      means = {k: float(v) for k, (v, _) in output.weighted_scalars.items()}
    self._run.writer.write(
      step, summaries.tags.step_summaries(output), split='eval_train'
    )
    return Found(eval_train=means)

  def _evaluate(self, step: int, state: TrainState, found: Found) -> Found:
    self._evaluated_step = step
    if not (self._run.passes.evals and self._eval_interval):
      return found
    with self._reports.pause(), self._run.ledger.during(_EVAL):
      state = program.get_eval_train_state(
        self._run.task, state, self._eval_ema
      )
      evals = self._run.passes.evaluate(state, step)
    for name, out in evals.items():
      self._reports.show_also(passes_lib.headline(name, out))
    return dataclasses.replace(found, evals=evals)

  def _decode(self, step: int, state: TrainState, found: Found) -> Found:
    with self._reports.pause(), self._run.ledger.during(_EVAL):
      state = program.get_eval_train_state(
        self._run.task, state, self._decode_ema
      )
      decodes = self._run.passes.decode(state, step)
    return dataclasses.replace(found, decodes=decodes)

  def _should_stop(
    self, step: int, done: program.TrainProgramOutput, found: Found
  ) -> bool:
    """Asks the task; the losses of a step are waited for only if it is time."""
    is_last = self._is_last(step, found)
    is_time = is_last or found.evals or found.decodes
    found = dataclasses.replace(
      found,
      train=done.weighted_scalars if is_time else None,
      numbers=self._reports.numbers(),
    )
    return self._run.stopping.should_stop(step, is_last, found)

  def _is_last(self, step: int, found: Found) -> bool:
    """Whether nothing of the kind comes after this."""
    return early_stopping.is_last_checkpoint(
      RunningMode.detect(
        has_train_metrics=True,
        has_eval_metrics=bool(found.evals),
        has_decode_metrics=bool(found.decodes),
      ),
      step,
      self._last_step,
      self._eval_interval or 0,
      self._decode_interval or 0,
      save_interval_steps=0,
      train_to_end=bool(
        getattr(self._run.task.early_stopping_fn, 'train_to_end', False)
      ),
    )
