# SPDX-License-Identifier: Apache-2.0
"""Watchdog: stops a job that makes no progress, with stack traces."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from pax import exit_codes, stop_signals
from pax.files import side_files
from pax.programs.stopping.stop_request import StopRequest

_POLLS_PER_TIMEOUT = 20
# Time for the job to begin to save after the request to stop.
_GRACE_SECS = 60.0
_GRACE_POLL_SECS = 0.1
# Without --hang_timeout_secs: one process waits for the others forever.
_MULTIPROCESS_TIMEOUT_SECS = 1800.0


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
  """Requests to stop, with exit code 124, when no heartbeat arrives in time.

  The stacks of all threads go to stderr and to a file. A job that waits for its
  input then saves its state and ends. If there is no heartbeat after a grace
  period either, nothing can be saved: the process ends.
  """

  def __init__(
    self,
    timeout_secs: float,
    log_file: str,
    request: StopRequest,
    *,
    grace_secs: float = _GRACE_SECS,
    end: Callable[[int, str], None] = stop_signals.end_process,
  ):
    """Starts the thread; watching starts with the first heartbeat.

    Args:
      timeout_secs: Longest time between heartbeats. Those of the loop follow
        the compilation of the train step; evaluation compiles later.
      log_file: File to which the stacks are appended.
      request: Receives the request to stop.
      grace_secs: Time for the job to begin to save.
      end: Ends the process with an exit code and a message.

    Raises:
      ValueError: The timeout is not positive.
    """
    if timeout_secs <= 0:
      raise ValueError(
        f'hang_timeout_secs must be positive, got {timeout_secs}; set it to 0'
        ' to wait without limit'
      )
    self._timeout_secs = timeout_secs
    self._log_file = log_file
    self._request = request
    self._grace_secs = grace_secs
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
        self._stop(last)

  def _stop(self, last_beat: float) -> None:
    """Requests to stop; ends the process if it does not respond."""
    self._report()
    self._request.set('hang', exit_codes.HANG)
    deadline = time.monotonic() + self._grace_secs
    while self._last_beat == last_beat:
      if self._closed.wait(_GRACE_POLL_SECS):
        return
      if time.monotonic() > deadline:
        self._closed.set()
        self._end(
          exit_codes.HANG,
          f'hang: the job does not stop within {self._grace_secs:g} s; steps'
          ' after the last checkpoint are lost',
        )

  def _report(self) -> None:
    message = (
      f'pax: hang: no step for {self._timeout_secs:g} s: stopping; the stacks'
      ' of all threads follow\n'
    )
    if sys.__stderr__ is not None:
      _dump_stacks(message, sys.__stderr__)
    # The job directory may be gone.
    with side_files.tolerate_errors(self._log_file):
      with open(self._log_file, 'a', encoding='utf-8') as log:
        _dump_stacks(message, log)


def _dump_stacks(message: str, stream: TextIO) -> None:
  stream.write(message)
  stream.flush()
  faulthandler.dump_traceback(stream, all_threads=True)


def create_watchdog(
  timeout_secs: float | None,
  log_file: str,
  request: StopRequest,
  num_processes: int,
) -> Watchdog:
  """Returns the watchdog of a job; without a timeout it watches nothing.

  Args:
    timeout_secs: Longest time between heartbeats; 0: no limit; None: the
      default, which limits jobs of several processes.
    log_file: File for the stacks.
    request: Receives the request to stop.
    num_processes: Number of processes of the job.
  """
  if timeout_secs is None and num_processes > 1:
    timeout_secs = _MULTIPROCESS_TIMEOUT_SECS
  if not timeout_secs:
    return NoopWatchdog()
  return HangWatchdog(timeout_secs, log_file, request)
