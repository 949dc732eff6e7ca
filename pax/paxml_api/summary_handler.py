# SPDX-License-Identifier: Apache-2.0
"""Decides at which steps summaries are taken and written, for user loops."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import jax
import numpy as np
from absl import logging

from pax.paxml_api import summary_writer
from pax.summaries import tags


class SummaryHandler:
  """Takes what steps give; writes it now and then, as means over steps."""

  def __init__(
    self,
    summary_writer: summary_writer.SummaryWriter,
    write_interval_steps: int,
    accumulate_interval_steps: int | None = None,
    log_interval_steps: int | None = None,
    is_async: bool = False,
    name: str = '',
    metrics_prefix: str = tags.METRICS_PREFIX,
  ):
    """Has nothing yet.

    Args:
      summary_writer: where to write.
      write_interval_steps: an entry is written at each multiple of this.
      accumulate_interval_steps: steps at multiples of this are averaged into
        an entry; None takes the step of the entry alone.
      log_interval_steps: steps at multiples of this are logged; None logs all.
      is_async: whether a thread does all this.
      name: stands in the log.
      metrics_prefix: put before the names of metrics.
    """
    self._writer = summary_writer
    self._write_interval = write_interval_steps
    self._accumulate_interval = accumulate_interval_steps
    self._log_interval = log_interval_steps
    self._name = name
    self._prefix = metrics_prefix
    self._pool = None
    if is_async:
      self._pool = futures.ThreadPoolExecutor(1, 'SummaryHandler')
    self._running: list[futures.Future[None]] = []
    self._clear()

  def close(self, wait: bool = True) -> None:
    """Ends the thread; raises what went wrong in it, if it is waited for."""
    if self._pool is None:
      return
    self._pool.shutdown(wait=wait)
    self._pool = None
    if wait:
      for job in self._running:
        job.result()

  @property
  def accumulate_over_steps(self) -> bool:
    """Whether an entry is a mean over several steps."""
    return self._accumulate_interval is not None

  def should_accumulate(self, step: int) -> bool:
    """Whether this step is one of those averaged."""
    return self.accumulate_over_steps and step % self._accumulate_interval == 0

  def should_write(self, step: int) -> bool:
    """Whether an entry is written at this step."""
    return step % self._write_interval == 0

  def should_log(self, step: int) -> bool:
    """Whether this step is logged."""
    return not self._log_interval or step % self._log_interval == 0

  def process(
    self,
    step: int,
    loss: Any,
    weighted_scalars: Mapping[str, tuple[Any, Any]] | None,
    summary_tensors: Mapping[str, Any],
    per_example_out: Any = None,
    steps_per_sec: float | None = None,
    clu_metrics: Mapping[str, Any] | None = None,
  ) -> bool:
    """Takes what a step gave; says whether an entry is written with it.

    Values may be on their way from a device. Of `clu_metrics` each has
    `merge(other)` and `compute()`.
    """
    logs, writes = self.should_log(step), self.should_write(step)
    if not (logs or writes or self.should_accumulate(step)):
      return False
    values = loss, weighted_scalars or {}, summary_tensors
    examples = per_example_out if logs else None

    def take() -> None:
      found, rows = jax.device_get((values, examples))
      self._take(step, found, steps_per_sec, clu_metrics or {})
      if logs:
        logging.info('[PAX STATUS] step_i: %d, %s: %s', step, self._name, found)
        if rows:
          logging.info('per_example_out: %s', rows)

    self._run(take)
    return writes

  def _run(self, job: Callable[[], None]) -> None:
    if self._pool is None:
      job()
      return
    # Those that are done may have failed.
    for done in [j for j in self._running if j.done()]:
      self._running.remove(done)
      done.result()
    self._running.append(self._pool.submit(job))

  def _take(
    self,
    step: int,
    values: tuple[Any, Mapping[str, Any], Mapping[str, Any]],
    steps_per_sec: float | None,
    metrics: Mapping[str, Any],
  ) -> None:
    is_alone = not self.accumulate_over_steps and self.should_write(step)
    if self.should_accumulate(step) or is_alone:
      self._add(values, steps_per_sec, metrics)
    if self.should_write(step) and self._losses:
      summary_writer.write_summary_entry(
        self._writer,
        step,
        np.mean(self._losses),
        self._scalars,
        self._metrics,
        self._tensors,
        np.mean(self._speeds) if self._speeds else None,
        self._prefix,
      )
      self._clear()

  def _add(
    self,
    values: tuple[Any, Mapping[str, Any], Mapping[str, Any]],
    steps_per_sec: float | None,
    metrics: Mapping[str, Any],
  ) -> None:
    loss, scalars, tensors = values
    self._losses.append(np.mean(loss))
    for name, pair in scalars.items():
      self._scalars[name].append(pair)
    for key, value in summary_writer.flatten_summary_dict(tensors):
      self._tensors[key].append(value)
    for name, metric in metrics.items():
      old = self._metrics.get(name)
      self._metrics[name] = old.merge(metric) if old else metric
    if steps_per_sec is not None:
      self._speeds.append(steps_per_sec)

  def _clear(self) -> None:
    self._losses: list[Any] = []
    self._scalars: dict[str, list[Any]] = collections.defaultdict(list)
    self._tensors: dict[str, list[Any]] = collections.defaultdict(list)
    self._metrics: dict[str, Any] = {}
    self._speeds: list[float] = []
