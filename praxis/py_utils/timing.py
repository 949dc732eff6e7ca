# SPDX-License-Identifier: Apache-2.0
"""Wall-clock timing of blocks of code and of function calls."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class RunningPeriod:
  """A time interval; it is still running while `end` is None."""

  # Seconds since the epoch, as `time.time` returns them.
  start: float
  end: float | None = None
  # Lower bound of `elapsed` in seconds; keeps rates finite.
  min_elapsed: float = 0

  @property
  def elapsed(self) -> float:
    """The length of the interval in seconds, up to now while it is running."""
    last = self.end
    if last is None:
      last = time.time()
    return max(self.min_elapsed, last - self.start)


@contextlib.contextmanager
def timeit(min_elapsed: float = 1e-6) -> Iterator[RunningPeriod]:
  """Measures the `with` block; read `elapsed` of the yielded period."""
  period = RunningPeriod(start=time.time(), min_elapsed=min_elapsed)
  try:
    yield period
  finally:
    period.end = time.time()


def benchmark(
  prefix: str = '', first_n: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Returns a decorator that logs the duration of calls.

  Args:
    prefix: starts each log line.
    first_n: number of calls to log; None: all of them.
  """

  def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
    num_calls = 0

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
      nonlocal num_calls
      num_calls += 1
      if first_n is not None and num_calls > first_n:
        return fn(*args, **kwargs)
      with timeit() as period:
        result = fn(*args, **kwargs)
      _log.info('%s<%s> took %.2f s', prefix, fn.__name__, period.elapsed)
      return result

    return wrapped

  return decorate
