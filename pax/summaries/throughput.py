# SPDX-License-Identifier: Apache-2.0
"""Steps, and tokens or examples, per second of training, without pauses."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
  """Speed between two measurements."""

  steps_per_sec: float
  # Tokens or examples.
  unit: str
  units_per_sec: float


class Throughput:
  """Measures the speed between calls, without the time in `pause()`."""

  def __init__(
    self,
    units_per_step: int,
    unit: str,
    clock: Callable[[], float] = time.perf_counter,
  ):
    """Does not start the clock; the first `measure` does.

    Args:
      units_per_step: Tokens, including padding, or examples of the global
        batch.
      unit: The plural of what is counted.
      clock: Returns seconds.
    """
    self._units_per_step, self._unit = units_per_step, unit
    self._clock = clock
    self._last: tuple[int, float] | None = None
    self._paused = 0.0

  def measure(self, step: int) -> Rate | None:
    """Returns the speed since the last call; None without such a call or steps.

    Call it when `step` steps are complete, not only dispatched.
    """
    now = self._clock() - self._paused
    last, self._last = self._last, (step, now)
    if last is None or step <= last[0] or now <= last[1]:
      return None
    steps_per_sec = (step - last[0]) / (now - last[1])
    return Rate(
      steps_per_sec=steps_per_sec,
      unit=self._unit,
      units_per_sec=steps_per_sec * self._units_per_step,
    )

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Excludes the time of the block: evaluation, checkpoints."""
    start = self._clock()
    try:
      yield
    finally:
      self._paused += self._clock() - start
