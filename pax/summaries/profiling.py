# SPDX-License-Identifier: Apache-2.0
"""Records a few steps with the JAX profiler, for TensorBoard or XProf."""

from __future__ import annotations

from typing import Any

import jax
from absl import logging


class StepProfiler:
  """Traces `num_steps` steps from `capture_step` on; none if that is None."""

  def __init__(
    self, log_dir: str, capture_step: int | None, num_steps: int = 2
  ):
    if num_steps < 0:
      raise ValueError(f'num_steps must not be negative, got {num_steps}')
    self._log_dir = log_dir
    self._first = capture_step if num_steps else None
    self._end = (capture_step or 0) + num_steps
    self._active = False

  def step(self, step: int, last_output: Any = ()) -> None:
    """Tells that `step` is about to start.

    Args:
      step: the step.
      last_output: what the step before returned; waited for, where the trace
        begins and ends, so that it holds whole steps.
    """
    if self._active and step >= self._end:
      self._stop(last_output)
    elif not self._active and step == self._first:
      jax.block_until_ready(last_output)
      jax.profiler.start_trace(self._log_dir)
      self._active = True

  def close(self, last_output: Any = ()) -> None:
    """Ends a trace that is still open."""
    if self._active:
      self._stop(last_output)

  def _stop(self, last_output: Any) -> None:
    jax.block_until_ready(last_output)
    jax.profiler.stop_trace()
    self._active = False
    logging.info('Wrote a profile to %s', self._log_dir)
