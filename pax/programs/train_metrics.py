# SPDX-License-Identifier: Apache-2.0
"""Reports training steps: speed, losses, summaries, profiles."""

from __future__ import annotations

import collections
import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from jax.typing import ArrayLike

from pax import partitioning, summaries
from pax.files import side_files, working_copy
from pax.learners import privacy
from pax.programs import divergence, program, step_status, summary_window
from pax.programs.jobs import TrainJob
from pax.programs.program import TrainProgramOutput, TrainState
from pax.steps import Batch, StepOutput
from pax.summaries import profile_summary

# Scalars and media by tag.
Summaries = dict[str, float | jax.Array | summaries.media.Media]

# The summary of the last trace.
PROFILE_FILE = 'profile_summary.md'
# Shortest time between two progress lines.
_SHOW_SECS = 1.0


class _InflightStep(NamedTuple):
  """A step that the devices may still be computing."""

  step: int
  # None if the program computes none.
  loss: jax.Array | None
  # Waits for the step.
  status: Callable[[], step_status.StepStatus]
  batch: Batch
  # Metrics of the progress line.
  shown: Mapping[str, ArrayLike]


class TrainMetricsReporter:
  """Bounds the steps in flight and reports those that have finished.

  It waits for the devices only to bound the steps in flight; the thread of the
  writer fetches summaries.
  """

  def __init__(self, job: TrainJob):
    self._job = job
    train = job.task.train
    # Copied: reading a Config at every step is slow.
    self._summary_interval = train.summary_interval_steps
    self._speed_interval = train.compute_steps_per_sec_interval_steps
    self._max_inflight = train.max_inflight_steps
    self._last_step = int(train.num_train_steps)
    self._log_interval = train.log_train_output_interval_steps
    self._accumulate_interval = train.summary_accumulate_interval_steps
    self._window = summary_window.restore(job.job_log_dir, job.step)
    self._inflight: collections.deque[_InflightStep] = collections.deque()
    self._status_reader = step_status.StatusReader(job.task.learners[0])
    # Follows the steps that have finished.
    self.divergence = divergence.DivergenceMonitor(job)
    self._speed = _Speed(job.partitioner)
    self._shown_metrics: dict[str, float] = {}
    # Written with the first summaries only.
    self._first_scalars = {
      summaries.tags.NUM_PARAMS: job.partitioner.num_params
    }
    self._shown_at = float('-inf')
    self._status = _create_status_log(job)
    self._batch_size, _ = _batch_shape(job.partitioner.input_spec)
    self._privacy = _create_privacy_account(job, self._batch_size)
    self._print(self._privacy.line(self._last_step))
    self._profiler = program.create_step_profiler(
      train, job.job_log_dir, self._summarize_profile
    )
    self._profiler.step(job.step)

  def add(self, step: int, output: TrainProgramOutput, batch: Batch) -> None:
    """Takes the output of `step`, which the devices may still be computing.

    Args:
      step: Number of the step.
      output: Its output.
      batch: Its global batch, kept until the step has finished.
    """
    status = self._status_reader.start(output.loss, output.step_output)
    shown = self._job.train_program.headline_metrics(output)
    self._inflight.append(
      _InflightStep(step, output.loss, status, batch, shown)
    )
    if step_output := output.step_output:
      self._summarize(step, step_output)
      if self._log_interval and step % self._log_interval == 0:
        rows = jax.device_get(step_output.per_example_out)
        logging.info('Per-example outputs of step %d: %s', step, rows)
    elif step % self._summary_interval == 0:
      scalars = summaries.tags.weighted_scalars(output.weighted_scalars or {})
      if output.loss is not None:
        scalars = {summaries.tags.LOSS: output.loss} | scalars
      self._job.writer.write(step, scalars)
    self._profiler.step(output.new_train_step, output.loss)
    is_first = step == self._job.step
    while len(self._inflight) > (0 if is_first else self._max_inflight):
      self._finish_oldest()
    if is_first:
      self._finish_start()

  def pause(self) -> contextlib.AbstractContextManager[None]:
    """Waits for the steps in flight; excludes the block from the speed.

    And from the summary of a trace.
    """
    self.finish_steps()
    return self._speed.pause()

  def show_metrics(self, metrics: dict[str, float]) -> None:
    """Adds metrics to the progress lines from now on."""
    self._shown_metrics |= metrics

  def job_scalars(self) -> dict[str, float]:
    """Returns the number of parameters, and the speed once it is measured."""
    scalars: dict[str, float] = {
      summaries.tags.NUM_PARAMS: self._job.partitioner.num_params
    }
    if self._speed.rate is not None:
      scalars['train_steps_per_sec'] = self._speed.rate.steps_per_sec
    return scalars

  def finish_steps(self) -> None:
    """Waits for the steps in flight, as time of steps."""
    with self._job.goodput.record(summaries.goodput.STEP):
      while self._inflight:
        self._finish_oldest()

  def save_accumulators(self, step: int) -> None:
    """Writes the sums of means whose last step is after this checkpoint."""
    if self._accumulate_interval:
      summary_window.save(self._job.job_log_dir, step, self._window)

  def drain(self) -> None:
    """Waits for all steps."""
    self.finish_steps()
    self._profiler.close()

  def finish(self, step: int, state: TrainState) -> None:
    """Plots the losses; prints epsilon, goodput and a sample of the model."""
    self._job.writer.flush()
    if jax.process_index() == 0:
      summaries.plots.loss_curve(self._job.job_log_dir)
      self._print(self._privacy.line(step))
      self._job.progress.print(self._job.goodput.summary_line())
    if prompt := getattr(self._job.train_input, 'sample_prompt', ''):
      self._print_sample(state, prompt)

  def _print(self, line: str) -> None:
    if line:
      self._job.progress.print(line)

  def _summarize_profile(self, trace: pathlib.Path) -> None:
    """Writes the summary of a trace into its directory, and its first line."""
    if jax.process_index() != 0:
      return
    self._measure_peak()
    try:
      profile = jax.profiler.ProfileData.from_file(str(trace))
    except (OSError, RuntimeError) as e:
      logging.warning('%s cannot be summarized: %s', trace, e)
      return
    summary = profile_summary.summarize(profile)
    if summary is None:
      logging.warning('%s has no whole step', trace)
      return
    mfu = self._speed.mfu_of(summary.num_steps / summary.seconds)
    sources: dict[tuple[str, str], str] = {}
    if not self._job.train_program.has_own_step:
      step = self._job.partitioner.train_step()
      sources = profile_summary.op_names(step.compiled.as_text() or '')
    page = pathlib.Path(self._job.job_log_dir) / PROFILE_FILE
    side_files.write_text(
      page, profile_summary.to_markdown(summary, mfu, sources)
    )
    line = profile_summary.summary_line(summary, mfu)
    self._job.progress.print(f'{line}; {working_copy.origin(page)}')

  def _summarize(self, step: int, output: StepOutput) -> None:
    interval = self._accumulate_interval
    if interval and step % interval == 0:
      self._window.outputs.append(output)
    if step % self._summary_interval == 0:
      window = self._window or summary_window.SummaryWindow([output])
      self._window = summary_window.SummaryWindow()
      job_scalars = self._speed.scalars() | self._first_scalars
      self._first_scalars = {}
      counts = self.divergence.counts
      statuses = [step.status for step in self._inflight]
      self._job.writer.write(
        step,
        lambda: (
          self._step_scalars(window)
          | step_status.count_scalars(counts, statuses)
          | _privacy_scalars(self._privacy, step + 1)
          | job_scalars
        ),
      )

  def _step_scalars(self, window: summary_window.SummaryWindow) -> Summaries:
    """Returns summaries by tag, means if several steps; waits for the steps."""
    scalars = window.means()
    derived = self._job.train_input.derived_metrics(window.last_scalars())
    prefix = summaries.tags.METRICS_PREFIX
    return scalars | {f'{prefix}{name}': x for name, x in derived.items()}

  def _print_sample(self, state: TrainState, prompt: str) -> None:
    from pax.programs import sample

    job = self._job
    text = job.partitioner.run_on_mesh(
      sample.sample_text, job.task, state.mdl_vars, job.train_input, prompt
    )
    job.progress.print(f'sample: {text}')

  def _finish_oldest(self) -> None:
    step, loss, status, batch, shown = self._inflight.popleft()
    jax.block_until_ready(loss)
    self.divergence.finish_step(step, status(), batch)
    num_done = step + 1
    is_first_or_last = step == self._job.step or num_done == self._last_step
    if num_done % self._speed_interval == 0 or is_first_or_last:
      self._speed.measure(num_done)
      self._status.update(num_done, self._speed.rate)
      if is_first_or_last or time.monotonic() - self._shown_at > _SHOW_SECS:
        self._show(
          num_done, {k: float(np.asarray(x)) for k, x in shown.items()}
        )

  def _finish_start(self) -> None:
    """Does what the first step need not wait for."""
    job = self._job
    # First, while the cores are idle.
    self._measure_peak()
    summaries.write_description(
      job.writer, job.partitioner.var_weight_hparams, self._batch_size
    )
    summaries.write_provenance(job.writer, job.job_log_dir)
    job.after_first_step()

  def _measure_peak(self) -> None:
    """Measures the peak of CPUs, which takes idle cores."""
    for step in self._inflight:
      jax.block_until_ready(step.loss)
    with self._speed.pause():
      self._speed.measure_peak()

  def _show(self, num_done: int, metrics: dict[str, float]) -> None:
    self._shown_at = time.monotonic()
    counts = self.divergence.counts.progress_metrics()
    self._job.progress.update(
      num_done,
      metrics | counts | self._shown_metrics,
      rate=self._speed.rate,
      mfu=self._speed.mfu,
      input_wait=self._job.goodput.input_wait(),
    )


def _create_privacy_account(job: TrainJob, batch_size: int) -> privacy.Account:
  gradient = job.task.learners[0].stochastic_gradient
  mechanism = None if gradient is None else gradient.mechanism(batch_size)
  return privacy.account(mechanism)


def _privacy_scalars(account: privacy.Account, steps: int) -> dict[str, float]:
  epsilon = account.epsilon(steps)
  return {} if epsilon is None else {summaries.tags.DP_EPSILON: epsilon}


def _create_status_log(
  job: TrainJob,
) -> summaries.StatusLog | summaries.NoopStatusLog:
  train = job.task.train
  if not train.report_progress_hook:
    return summaries.NoopStatusLog()
  return summaries.StatusLog(int(train.num_train_steps))


# By the unit of `Throughput`.
_SPEED_TAGS = {
  'tokens': summaries.tags.TOKENS_PER_SEC,
  'examples': summaries.tags.EXAMPLES_PER_SEC,
}


class _Speed:
  """Steps and tokens or examples per second, and model FLOPs utilization.

  The formula of the FLOPs applies each weight once per token: batches without
  `ids` [B, T], such as images and pairs of sequences, have no utilization.
  """

  def __init__(self, partitioner: partitioning.Partitioner):
    batch_size, seq_len = _batch_shape(partitioner.input_spec)
    self._throughput = summaries.Throughput(
      batch_size * (seq_len or 1), 'tokens' if seq_len else 'examples'
    )
    # FLOPs of a step; None if the formula does not hold.
    self._flops = None
    if seq_len:
      (learner,) = partitioner.task.learners
      self._flops = summaries.mfu.model_flops(
        partitioner.var_weight_hparams,
        batch_size=batch_size,
        seq_len=seq_len,
        learned=learner.bprop_mask(partitioner.var_weight_hparams),
      ).flops_per_step
    self._devices = partitioner.devices
    # None before `measure_peak`.
    self._peak: summaries.mfu.Peak | None = None
    # The last measurement; None before the second call of `measure`.
    self.rate: summaries.Rate | None = None

  @property
  def mfu(self) -> float | None:
    return None if self.rate is None else self.mfu_of(self.rate.steps_per_sec)

  def mfu_of(self, steps_per_sec: float) -> float | None:
    if self._flops is None or self._peak is None:
      return None
    return summaries.mfu.mfu(self._flops, steps_per_sec, self._peak)

  def measure_peak(self) -> None:
    if self._flops is not None:
      self._peak = summaries.mfu.peak_flops(self._devices)

  def measure(self, step: int) -> None:
    self.rate = self._throughput.measure(step) or self.rate

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    with (
      self._throughput.pause(),
      jax.profiler.TraceAnnotation(profile_summary.PAUSE),
    ):
      yield

  def scalars(self) -> dict[str, float]:
    if self.rate is None:
      return {}
    scalars = {
      summaries.tags.STEPS_PER_SEC: self.rate.steps_per_sec,
      _SPEED_TAGS[self.rate.unit]: self.rate.units_per_sec,
    }
    return (
      scalars if self.mfu is None else scalars | {summaries.tags.MFU: self.mfu}
    )


def _batch_shape(input_spec: Batch) -> tuple[int, int | None]:
  """Returns (batch size, sequence length); the latter may not exist."""
  ids = input_spec.get('ids')
  if ids is not None and len(ids.shape) == 2:
    return ids.shape
  leaf = next(iter(input_spec.Flatten()))
  return leaf.shape[0], None
