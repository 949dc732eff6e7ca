# SPDX-License-Identifier: Apache-2.0
"""Traces selected steps with the JAX profiler, for TensorBoard or XProf."""

from __future__ import annotations

import glob
import os
import pathlib
import socket
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import logging


class StepProfiler:
  """Traces steps from `capture_step` on."""

  def __init__(
    self,
    log_dir: str,
    capture_step: int | None,
    num_steps: int = 2,
    *,
    min_duration_secs: float = 0.0,
    on_written: Callable[[pathlib.Path], None] = lambda trace: None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Does not start a trace.

    Args:
      log_dir: Directory of the traces.
      capture_step: The first traced step; None traces nothing.
      num_steps: Least number of traced steps; 0 traces nothing.
      min_duration_secs: Least duration of the trace, which ends with a step.
      on_written: Called with the file of the trace.
      clock: Returns seconds.

    Raises:
      ValueError: `num_steps` is negative.
    """
    if num_steps < 0:
      raise ValueError(f'num_steps must not be negative, got {num_steps}')
    self._log_dir = log_dir
    self._first = capture_step if num_steps else None
    self._end = (capture_step or 0) + num_steps
    self._min_duration_secs = min_duration_secs
    self._on_written = on_written
    self._clock = clock
    self._started_at: float | None = None

  def step(self, step: int, last_output: Any = ()) -> None:
    """Starts or ends the trace if due; call it before each step.

    Args:
      step: The step that is about to start.
      last_output: Output of the previous step, which is waited for when the
        trace starts or ends, so that it contains whole steps.
    """
    if self._started_at is not None and step >= self._end:
      jax.block_until_ready(last_output)
      if self._clock() - self._started_at >= self._min_duration_secs:
        self._stop()
    elif self._started_at is None and step == self._first:
      jax.block_until_ready(last_output)
      self._start()

  def close(self, last_output: Any = ()) -> None:
    """Ends an open trace."""
    if self._started_at is not None:
      jax.block_until_ready(last_output)
      self._stop()

  def _start(self) -> None:
    # The profiler would create a directory that was deleted or unmounted.
    if not os.path.isdir(self._log_dir):
      return
    try:
      jax.profiler.start_trace(self._log_dir)
    except RuntimeError as e:
      logging.warning('Another trace runs, this one does not start: %s', e)
    else:
      self._started_at = self._clock()

  def _stop(self) -> None:
    self._started_at = None
    try:
      jax.profiler.stop_trace()
    except (OSError, RuntimeError) as e:
      logging.warning('The profile cannot be written: %s', e)
      return
    logging.info('Wrote a profile to %s', self._log_dir)
    # Other hosts may be writing theirs.
    name = f'{glob.escape(socket.gethostname())}.xplane.pb'
    traces = pathlib.Path(self._log_dir).glob(f'plugins/profile/*/{name}')
    if files := list(traces):
      self._on_written(max(files, key=lambda file: file.stat().st_mtime))
