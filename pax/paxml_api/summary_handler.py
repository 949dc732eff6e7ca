# SPDX-License-Identifier: Apache-2.0
"""Accumulation and periodic writing of summaries, for loops of users."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import jax
import numpy as np
from absl import logging

from pax.paxml_api import summary_writer as summary_writer_lib
from pax.summaries import tags

# Loss, (value, weight) by name, and summary tensors by key, on the host.
_StepValues = tuple[Any, Mapping[str, tuple[Any, Any]], Mapping[str, Any]]


class SummaryHandler:
  """Accumulates the outputs of steps and writes their mean at an interval."""

  def __init__(
    self,
    summary_writer: Any,
    write_interval_steps: int,
    accumulate_interval_steps: int | None = None,
    log_interval_steps: int | None = None,
    is_async: bool = False,
    name: str = '',
    metrics_prefix: str = tags.METRICS_PREFIX,
  ):
    """Creates a handler with nothing accumulated.

    Args:
      summary_writer: A SummaryWriter, of this library or of TensorFlow.
      write_interval_steps: An entry is written at each multiple of this.
      accumulate_interval_steps: Steps at multiples of this are averaged into
        an entry; None writes the values of the entry's own step.
      log_interval_steps: Steps at multiples of this are logged; None logs all.
      is_async: Whether a thread accumulates and writes.
      name: Name of the handler in the log.
      metrics_prefix: Prefix of the names of metrics.
    """
    self._writer = summary_writer_lib.as_summary_writer(summary_writer)
    self._write_interval = write_interval_steps
    self._accumulate_interval = accumulate_interval_steps
    self._log_interval = log_interval_steps
    self._name = name
    self._prefix = metrics_prefix
    self._pool = None
    if is_async:
      self._pool = futures.ThreadPoolExecutor(1, 'SummaryHandler')
    self._pending: list[futures.Future[None]] = []
    self._clear()

  def close(self, wait: bool = True) -> None:
    """Ends the thread; with `wait`, re-raises its errors."""
    if self._pool is None:
      return
    self._pool.shutdown(wait=wait)
    self._pool = None
    if wait:
      for future in self._pending:
        future.result()

  @property
  def accumulate_over_steps(self) -> bool:
    """Whether an entry is a mean over several steps."""
    return self._accumulate_interval is not None

  def should_accumulate(self, step: int) -> bool:
    """Returns whether this step enters a mean."""
    interval = self._accumulate_interval
    return interval is not None and step % interval == 0

  def should_write(self, step: int) -> bool:
    """Returns whether an entry is written at this step."""
    return step % self._write_interval == 0

  def should_log(self, step: int) -> bool:
    """Returns whether this step is logged."""
    return not self._log_interval or step % self._log_interval == 0

  def process(
    self,
    step: int,
    loss: jax.typing.ArrayLike,
    weighted_scalars: Mapping[str, tuple[Any, Any]] | None,
    summary_tensors: Mapping[str, Any],
    per_example_out: Any = None,
    steps_per_sec: float | None = None,
    clu_metrics: Mapping[str, Any] | None = None,
  ) -> bool:
    """Accumulates, logs and writes the outputs of a step where they are due.

    Arrays may still be computed on a device.

    Args:
      step: The step.
      loss: The loss, of one or several replicas.
      weighted_scalars: (value, weight) by name.
      summary_tensors: Summaries by key, possibly nested.
      per_example_out: Outputs per example, which are only logged.
      steps_per_sec: Training speed.
      clu_metrics: Metrics by name, each with `merge(other)` and `compute()`.

    Returns:
      Whether an entry is written at this step.
    """
    logs, writes = self.should_log(step), self.should_write(step)
    if not (logs or writes or self.should_accumulate(step)):
      return False
    on_device = loss, weighted_scalars or {}, summary_tensors
    examples = per_example_out if logs else None

    def process_on_host() -> None:
      values, rows = jax.device_get((on_device, examples))
      self._accumulate_and_write(step, values, steps_per_sec, clu_metrics or {})
      if logs:
        logging.info(
          '[PAX STATUS] step_i: %d, %s: %s', step, self._name, values
        )
        if rows:
          logging.info('per_example_out: %s', rows)

    self._submit(process_on_host)
    return writes

  def _submit(self, job: Callable[[], None]) -> None:
    if self._pool is None:
      job()
      return
    # Raises the errors of finished jobs.
    for future in [f for f in self._pending if f.done()]:
      self._pending.remove(future)
      future.result()
    self._pending.append(self._pool.submit(job))

  def _accumulate_and_write(
    self,
    step: int,
    values: _StepValues,
    steps_per_sec: float | None,
    metrics: Mapping[str, Any],
  ) -> None:
    is_single = not self.accumulate_over_steps and self.should_write(step)
    if self.should_accumulate(step) or is_single:
      self._accumulate(values, steps_per_sec, metrics)
    if self.should_write(step) and self._losses:
      summary_writer_lib.write_summary_entry(
        self._writer,
        step,
        np.mean(self._losses),
        self._scalars,
        self._metrics,
        self._tensors,
        float(np.mean(self._speeds)) if self._speeds else None,
        self._prefix,
      )
      self._clear()

  def _accumulate(
    self,
    values: _StepValues,
    steps_per_sec: float | None,
    metrics: Mapping[str, Any],
  ) -> None:
    loss, scalars, tensors = values
    self._losses.append(np.mean(loss))
    for name, pair in scalars.items():
      self._scalars[name].append(pair)
    for key, value in summary_writer_lib.flatten_summary_dict(tensors):
      self._tensors[key].append(value)
    for name, metric in metrics.items():
      previous = self._metrics.get(name)
      self._metrics[name] = previous.merge(metric) if previous else metric
    if steps_per_sec is not None:
      self._speeds.append(steps_per_sec)

  def _clear(self) -> None:
    self._losses: list[np.floating] = []
    self._scalars: dict[str, list[tuple[Any, Any]]] = collections.defaultdict(
      list
    )
    self._tensors: dict[str, list[Any]] = collections.defaultdict(list)
    self._metrics: dict[str, Any] = {}
    self._speeds: list[float] = []
