# SPDX-License-Identifier: Apache-2.0
"""What a run tells while it trains: speed, losses, evaluations."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from typing import Any

import jax

from pax import summaries, train_states
from pax.programs import eval as eval_program
from pax.programs.run import Run
from pax.steps import StepOutput

TrainState = train_states.TrainState

# A fast run is not shown more often than a person reads.
_SHOW_SECS = 1.0


class Reports:
  """Keeps a few steps in flight, and reports those that have finished.

  The device is never waited for but to bound the number of steps in flight;
  the writer's thread fetches what is written.
  """

  def __init__(self, run: Run):
    self._run = run
    settings = run.task.train
    # Read once: a Config takes its time to tell, and this is asked every step.
    self._summary_interval = settings.summary_interval_steps
    self._eval_interval = settings.eval_interval_steps if run.evals else None
    self._speed_interval = settings.compute_steps_per_sec_interval_steps
    self._max_inflight = settings.max_inflight_steps
    self._last_step = int(settings.num_train_steps)
    self._inflight: collections.deque[tuple[int, Any]] = collections.deque()
    self._speed = _Speed(run.partitioner)
    self._metrics: dict[str, float] = {}
    self._evaluated_step: int | None = None
    self._shown_at = float('-inf')
    self._profiler = _profiler(run)
    self._profiler.step(run.step)

  def add(self, step: int, output: StepOutput) -> None:
    """Takes the output of `step`, which may still be running."""
    if step % self._summary_interval == 0:
      speed = self._speed.scalars()
      self._run.writer.write(step, lambda: self._scalars(output) | speed)
    self._profiler.step(step + 1, output.loss)
    self._inflight.append((step, output.loss))
    while len(self._inflight) > self._max_inflight:
      self._finish_oldest()

  def _scalars(self, output: StepOutput) -> dict[str, Any]:
    """All scalars of a step by tag; waits for it."""
    pairs = output.weighted_scalars.items()
    means = {name: float(value) for name, (value, _) in pairs}
    derived = self._run.train_input.derived_metrics(means)
    return summaries.tags.step_scalars(output) | _tagged(derived)

  def evaluate_if_due(self, step: int, state: TrainState) -> None:
    """Evaluates when as many steps are done as the interval, or a multiple."""
    if self._eval_interval and step % self._eval_interval == 0:
      self._evaluate(step, state)

  def drain(self) -> None:
    """Waits for all steps."""
    while self._inflight:
      self._finish_oldest()
    self._profiler.close()

  def conclude(self, step: int, state: TrainState) -> None:
    """Evaluates the last state, draws the losses, prints a sample."""
    if self._run.evals and self._evaluated_step != step:
      self._evaluate(step, state)
    self._run.writer.flush()
    if jax.process_index() == 0:
      summaries.plots.loss_curve(self._run.job_log_dir)
    if prompt := getattr(self._run.train_input, 'sample_prompt', ''):
      self._sample(state, prompt)

  def _sample(self, state: TrainState, prompt: str) -> None:
    from pax.programs import sample

    run = self._run
    text = run.partitioner.run_on_mesh(
      sample.sample_text, run.task, state.mdl_vars, run.train_input, prompt
    )
    run.progress.print(f'sample: {text}')

  def _finish_oldest(self) -> None:
    step, loss = self._inflight.popleft()
    loss.block_until_ready()
    done = step + 1
    is_first_or_last = step == self._run.step or done == self._last_step
    if done % self._speed_interval == 0 or is_first_or_last:
      self._speed.measure(done)
      if is_first_or_last or time.monotonic() - self._shown_at > _SHOW_SECS:
        self._show(done, float(loss))

  def _show(self, done: int, loss: float) -> None:
    self._shown_at = time.monotonic()
    self._run.progress.update(
      done,
      {'loss': loss} | self._metrics,
      rate=self._speed.rate,
      mfu=self._speed.mfu,
    )

  def _evaluate(self, step: int, state: TrainState) -> None:
    self._evaluated_step = step
    with self._speed.pause():
      for program in self._run.evals:
        metrics, name = program.run(state), program.inp.name
        self._run.writer.write(
          step, _tagged(metrics), split=f'eval_test_{name}'
        )
        shown = {f'{name} {k}': v for k, v in _headline(metrics).items()}
        self._metrics |= shown
        self._run.progress.print(_line(step, shown))


def _profiler(run: Run) -> summaries.StepProfiler:
  """Traces the steps that the task names, on as many hosts as it names."""
  settings = run.task.train
  hosts = settings.profiler_max_num_hosts
  traced = hosts is None or jax.process_index() < hosts
  return summaries.StepProfiler(
    run.job_log_dir,
    settings.profiler_capture_step if traced else None,
    settings.profiler_num_steps,
  )


class _Speed:
  """Steps and tokens per second, and what share of the peak they are."""

  def __init__(self, partitioner: Any):
    batch_size, seq_len = _batch_shape(partitioner.input_spec)
    self._throughput = summaries.Throughput(batch_size * seq_len)
    self._flops = summaries.mfu.model_flops(
      partitioner.var_weight_hparams, batch_size=batch_size, seq_len=seq_len
    )
    self._peak = summaries.mfu.peak_flops(partitioner.devices)
    # The last measurement; None until there are two points in time.
    self.rate: summaries.Rate | None = None

  @property
  def mfu(self) -> float | None:
    if self.rate is None:
      return None
    return summaries.mfu.mfu(
      self._flops.flops_per_step, self.rate.steps_per_sec, self._peak
    )

  def measure(self, step: int) -> None:
    self.rate = self._throughput.measure(step) or self.rate

  def pause(self) -> contextlib.AbstractContextManager[None]:
    return self._throughput.pause()

  def scalars(self) -> dict[str, float]:
    if self.rate is None:
      return {}
    found = {
      summaries.tags.STEPS_PER_SEC: self.rate.steps_per_sec,
      summaries.tags.TOKENS_PER_SEC: self.rate.tokens_per_sec,
    }
    return found if self.mfu is None else found | {summaries.tags.MFU: self.mfu}


def _batch_shape(input_spec: Any) -> tuple[int, int]:
  """Batch size and sequence length of a global batch; 1 without sequences."""
  ids = input_spec.get('ids')
  if ids is not None and len(ids.shape) == 2:
    return ids.shape
  leaf = next(iter(input_spec.Flatten()))
  return leaf.shape[0], 1


def _tagged(metrics: dict[str, float]) -> dict[str, float]:
  return {
    name if name == eval_program.LOSS else f'Metrics/{name}': value
    for name, value in metrics.items()
  }


def _headline(metrics: dict[str, float]) -> dict[str, float]:
  """What a person wants to see of an evaluation."""
  names = [eval_program.LOSS, 'bits_per_byte']
  return {
    name: metrics[name]
    for name in names
    if math.isfinite(metrics.get(name, math.nan))
  }


def _line(step: int, metrics: dict[str, float]) -> str:
  shown = '  '.join(f'{name} {value:.4f}' for name, value in metrics.items())
  return f'step {step}  {shown}'
