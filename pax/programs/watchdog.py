# SPDX-License-Identifier: Apache-2.0
"""Ends a run that no longer gets anywhere, and tells where it hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

# As of `timeout`: what was waited for did not come in time.
EXIT_HANG = 124

_CHECKS_PER_TIMEOUT = 20


class Watchdog(Protocol):
  """Is told that a run is alive."""

  def beat(self) -> None:
    """To be called at every step and batch; watching begins with the first."""

  def rest(self) -> None:
    """Until the next beat nothing is expected."""

  def close(self) -> None:
    """Ends watching."""


class NoopWatchdog:
  """Watches nothing."""

  def beat(self) -> None:
    pass

  def rest(self) -> None:
    pass

  def close(self) -> None:
    pass


class HangWatchdog:
  """Ends the process when `beat` was not called for some seconds.

  The stacks of all threads go to stderr and to a file; the exit code is 124.
  """

  def __init__(
    self,
    timeout_secs: float,
    log_file: str,
    end: Callable[[int], None] = os._exit,
  ):
    """Begins to watch at the first beat.

    Args:
      timeout_secs: For so long nothing may happen. The first beat comes when
        the first step was compiled, but evaluation compiles later.
      log_file: Gets the stacks, after what is in it.
      end: Ends the process.
    """
    if timeout_secs <= 0:
      raise ValueError(
        f'hang_timeout_secs must be positive, got {timeout_secs}; leave it'
        ' unset to wait for ever'
      )
    self._timeout_secs = timeout_secs
    self._log_file = log_file
    self._end = end
    self._last_beat: float | None = None
    self._closed = threading.Event()
    self._thread = threading.Thread(
      target=self._watch, name='watchdog', daemon=True
    )
    self._thread.start()

  def beat(self) -> None:
    self._last_beat = time.monotonic()

  def rest(self) -> None:
    self._last_beat = None

  def close(self) -> None:
    self._closed.set()
    self._thread.join()

  def _watch(self) -> None:
    while not self._closed.wait(self._timeout_secs / _CHECKS_PER_TIMEOUT):
      last = self._last_beat
      if last is not None and time.monotonic() - last > self._timeout_secs:
        self._report()
        self._end(EXIT_HANG)
        return

  def _report(self) -> None:
    message = (
      f'pax: hang: no step for {self._timeout_secs:g} s; the stacks of all'
      ' threads follow\n'
    )
    with open(self._log_file, 'a', encoding='utf-8') as log:
      for stream in (log, sys.__stderr__):
        stream.write(message)
        stream.flush()
        faulthandler.dump_traceback(stream, all_threads=True)


def create_watchdog(timeout_secs: float | None, log_file: str) -> Watchdog:
  """Returns what watches a run; None never ends it."""
  if timeout_secs is None:
    return NoopWatchdog()
  return HangWatchdog(timeout_secs, log_file)
