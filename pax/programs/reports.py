# SPDX-License-Identifier: Apache-2.0
"""What a run tells while it trains: speed, losses, evaluations."""

from __future__ import annotations

import collections
import math
from typing import Any

from pax import summaries, train_states
from pax.programs import eval as eval_program
from pax.programs.run import Run
from pax.steps import StepOutput

TrainState = train_states.TrainState


class Reports:
  """Keeps a few steps in flight, and reports those that have finished.

  The device is never waited for but to bound the number of steps in flight;
  the writer's thread fetches what is written.
  """

  def __init__(self, run: Run):
    self._run = run
    self._settings = run.task.train
    self._inflight: collections.deque[tuple[int, Any]] = collections.deque()
    self._speed = _Speed(run.partitioner)
    self._metrics: dict[str, float] = {}
    self._evaluated_step: int | None = None

  def __enter__(self) -> Reports:
    return self

  def __exit__(self, *unused: Any) -> None:
    self._run.progress.close()

  def add(self, step: int, output: StepOutput) -> None:
    """Takes the output of `step`, which may still be running."""
    if step % self._settings.summary_interval_steps == 0:
      scalars = summaries.tags.step_scalars(output)
      rate = self._speed.latest
      if rate is not None:
        scalars[summaries.tags.STEPS_PER_SEC] = rate.steps_per_sec
      self._run.writer.write(step, scalars, split='train')
    self._inflight.append((step, output.loss))
    while len(self._inflight) > self._settings.max_inflight_steps:
      self._finish_oldest()

  def evaluate_if_due(self, step: int, state: TrainState) -> None:
    """Evaluates when as many steps are done as the interval, or a multiple."""
    interval = self._settings.eval_interval_steps
    if self._run.evals and interval and step % interval == 0:
      self._evaluate(step, state)

  def finish(self, step: int, state: TrainState) -> None:
    """Waits for all steps, and evaluates the last state."""
    while self._inflight:
      self._finish_oldest()
    if self._run.evals and self._evaluated_step != step:
      self._evaluate(step, state)

  def _finish_oldest(self) -> None:
    step, loss = self._inflight.popleft()
    loss.block_until_ready()
    done = step + 1
    interval = self._settings.compute_steps_per_sec_interval_steps
    if done % interval == 0 or done == int(self._settings.num_train_steps):
      rate = self._speed.measure(done)
      metrics = {'loss': float(loss)} | self._metrics
      self._run.progress.update(
        done, metrics, rate=rate, mfu=self._speed.mfu(rate)
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


class _Speed:
  """Steps and tokens per second, and what share of the peak they are."""

  def __init__(self, partitioner: Any):
    batch_size, seq_len = _batch_shape(partitioner.input_spec)
    self._throughput = summaries.Throughput(batch_size * seq_len)
    self._flops = summaries.mfu.model_flops(
      partitioner.var_weight_hparams, batch_size=batch_size, seq_len=seq_len
    )
    self._peak = summaries.mfu.peak_flops(partitioner.devices)
    self.latest: Any = None

  def measure(self, step: int) -> Any:
    self.latest = self._throughput.measure(step)
    return self.latest

  def pause(self) -> Any:
    return self._throughput.pause()

  def mfu(self, rate: Any) -> float | None:
    return summaries.mfu.mfu(
      self._flops.flops_per_step, rate.steps_per_sec, self._peak
    )


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
