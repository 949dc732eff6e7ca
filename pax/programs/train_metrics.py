# SPDX-License-Identifier: Apache-2.0
"""What a run tells of its steps while it trains: speed, losses, summaries."""

from __future__ import annotations

import collections
import contextlib
import time
from typing import Any

import jax
from absl import logging

from pax import summaries
from pax.programs import metric_accumulator, program
from pax.programs.program import TrainProgramOutput, TrainState
from pax.programs.run import Run
from pax.steps import StepOutput
from praxis import pytypes

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
    self._speed_interval = settings.compute_steps_per_sec_interval_steps
    self._max_inflight = settings.max_inflight_steps
    self._last_step = int(settings.num_train_steps)
    self._log_interval = settings.log_train_output_interval_steps
    self._accumulate_interval = settings.summary_accumulate_interval_steps
    self._accumulated: list[StepOutput] = []
    self._inflight: collections.deque[tuple[int, Any]] = collections.deque()
    self._speed = _Speed(run.partitioner)
    self._metrics: dict[str, float] = {}
    # What is written once, with the first summaries.
    self._once = {summaries.tags.NUM_PARAMS: run.partitioner.num_params}
    self._shown_at = float('-inf')
    self._status = _status_log(run)
    batch_size, _ = _batch_shape(run.partitioner.input_spec)
    summaries.write_description(
      run.writer, run.partitioner.var_weight_hparams, batch_size
    )
    summaries.write_provenance(run.writer, run.job_log_dir)
    self._profiler = program.step_profiler(settings, run.job_log_dir)
    self._profiler.step(run.step)

  def add(self, step: int, done: TrainProgramOutput) -> None:
    """Takes the output of `step`, which may still be running."""
    if output := done.step_output:
      self._summarize(step, output)
      if self._log_interval and step % self._log_interval == 0:
        rows = jax.device_get(output.per_example_out)
        logging.info('Step %d gave by example: %s', step, rows)
    self._profiler.step(done.new_train_step, done.loss)
    self._inflight.append((step, done.loss))
    while len(self._inflight) > self._max_inflight:
      self._finish_oldest()

  def pause(self) -> contextlib.AbstractContextManager[None]:
    """Time in which no steps are expected; those in flight end before."""
    while self._inflight:
      self._finish_oldest()
    return self._speed.pause()

  def show_also(self, metrics: dict[str, float]) -> None:
    """Shows these beside the loss from now on."""
    self._metrics |= metrics

  def numbers(self) -> dict[str, float]:
    """The number of parameters, and the speed where it is known."""
    known = {summaries.tags.NUM_PARAMS: self._run.partitioner.num_params}
    if self._speed.rate is not None:
      known['train_steps_per_sec'] = self._speed.rate.steps_per_sec
    return known

  def drain(self) -> None:
    """Waits for all steps."""
    while self._inflight:
      self._finish_oldest()
    self._profiler.close()

  def conclude(self, state: TrainState) -> None:
    """Draws the losses, prints a sample."""
    self._run.writer.flush()
    if jax.process_index() == 0:
      summaries.plots.loss_curve(self._run.job_log_dir)
      self._run.progress.print(self._run.ledger.summary_line())
    if prompt := getattr(self._run.train_input, 'sample_prompt', ''):
      self._sample(state, prompt)

  def _summarize(self, step: int, output: StepOutput) -> None:
    interval = self._accumulate_interval
    if interval and step % interval == 0:
      self._accumulated.append(output)
    if step % self._summary_interval == 0:
      outputs = self._accumulated or [output]
      self._accumulated = []
      also = self._speed.scalars() | self._once
      self._once = {}
      self._run.writer.write(step, lambda: self._scalars(outputs) | also)

  def _scalars(self, outputs: list[StepOutput]) -> dict[str, Any]:
    """All scalars of steps by tag; waits for them. The last one's if single."""
    if len(outputs) == 1:
      scalars = summaries.tags.step_summaries(outputs[0])
    else:
      scalars = _means(outputs, self._run.task.decode.metrics_prefix)
    pairs = outputs[-1].weighted_scalars.items()
    means = {name: float(value) for name, (value, _) in pairs}
    derived = self._run.train_input.derived_metrics(means)
    return scalars | {f'Metrics/{name}': x for name, x in derived.items()}

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
      self._status.update(done, self._speed.rate)
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


def _means(outputs: list[StepOutput], prefix: str) -> dict[str, float]:
  """The means over steps, of weighted scalars by weight."""
  found = metric_accumulator.Collected(None)
  for output in outputs:
    found.add(output, pytypes.NestedMap())
  found.finish()
  return {
    summaries.tags.LOSS: found.loss,
    **summaries.tags.weighted_scalars(found.metrics, prefix),
    **found.layer_summaries,
    **found.media,
  }


def _status_log(run: Run) -> summaries.StatusLog | summaries.NoopStatusLog:
  train = run.task.train
  if not train.report_progress_hook:
    return summaries.NoopStatusLog()
  return summaries.StatusLog(int(train.num_train_steps))


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
