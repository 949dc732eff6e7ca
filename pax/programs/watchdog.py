# SPDX-License-Identifier: Apache-2.0
"""Watchdog: ends a process that makes no progress, with stack traces."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from pax import exit_codes

_POLLS_PER_TIMEOUT = 20


class Watchdog(Protocol):
  """Receives heartbeats."""

  def beat(self) -> None:
    """Records progress; watching starts with the first heartbeat."""

  def pause(self) -> None:
    """Stops watching until the next heartbeat."""

  def close(self) -> None:
    """Stops watching."""


class NoopWatchdog:
  """Watches nothing."""

  def beat(self) -> None:
    pass

  def pause(self) -> None:
    pass

  def close(self) -> None:
    pass


class HangWatchdog:
  """Ends the process, with exit code 124, when no heartbeat arrives in time.

  The stacks of all threads go to stderr and to a file.
  """

  def __init__(
    self,
    timeout_secs: float,
    log_file: str,
    end: Callable[[int], None] = os._exit,
  ):
    """Starts the thread; watching starts with the first heartbeat.

    Args:
      timeout_secs: Longest time between heartbeats. The first heartbeat follows
        the compilation of the train step; evaluation compiles later.
      log_file: File to which the stacks are appended.
      end: Ends the process with an exit code.

    Raises:
      ValueError: The timeout is not positive.
    """
    if timeout_secs <= 0:
      raise ValueError(
        f'hang_timeout_secs must be positive, got {timeout_secs}; leave it'
        ' unset to wait without limit'
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

  def pause(self) -> None:
    self._last_beat = None

  def close(self) -> None:
    self._closed.set()
    self._thread.join()

  def _watch(self) -> None:
    while not self._closed.wait(self._timeout_secs / _POLLS_PER_TIMEOUT):
      last = self._last_beat
      if last is not None and time.monotonic() - last > self._timeout_secs:
        self._report()
        self._end(exit_codes.HANG)
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
  """Returns the watchdog of a job; without a timeout it watches nothing."""
  if timeout_secs is None:
    return NoopWatchdog()
  return HangWatchdog(timeout_secs, log_file)
