# SPDX-License-Identifier: Apache-2.0
"""The request to stop a job, with its reason."""

from __future__ import annotations

import threading

from pax import exit_codes


class StopRequest:
  """An event with a reason; the first reason counts."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._event = threading.Event()
    # Why the job stops, for messages, and its exit code then.
    self.reason = ''
    self.exit_code = exit_codes.PREEMPTED

  def set(self, reason: str, exit_code: int = exit_codes.PREEMPTED) -> bool:
    """Requests the stop; returns False if it was requested before."""
    with self._lock:
      if self._event.is_set():
        return False
      self.reason, self.exit_code = reason, exit_code
      self._event.set()
      return True

  def is_set(self) -> bool:
    """Returns whether a stop is requested."""
    return self._event.is_set()

  def wait(self, timeout_secs: float) -> bool:
    """Waits for a request; returns whether there is one."""
    return self._event.wait(timeout_secs)
