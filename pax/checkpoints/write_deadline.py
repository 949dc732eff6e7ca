# SPDX-License-Identifier: Apache-2.0
"""Limit of the time in which a save makes no progress.

Calls of a file system that hangs never return, and no thread can cancel them.
The thread that trains raises the error instead of waiting for such a save; if
it hangs too, another thread ends the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

from pax.checkpoints import paths
from pax.checkpoints.types import CheckpointTimeoutError
from pax.files import storage

# Looks at the files per timeout, and the longest time between two.
_LOOKS_PER_TIMEOUT = 20
_MAX_LOOK_SECS = 10.0
# Longest time between two looks at the clock.
_MAX_POLL_SECS = 1.0
# Time from the deadline until the process is ended.
_GRACE_SECS = 60.0


class WriteDeadline:
  """Limits the time in which no file of a save changes.

  Saves in buckets are not limited: each request has a timeout.
  """

  def __init__(
    self,
    directory: storage.Path,
    timeout_secs: float,
    end_process: Callable[[str], None] | None = None,
  ):
    """Limits nothing yet.

    Args:
      directory: The directory of the checkpoints.
      timeout_secs: Longest time without a change of a file.
      end_process: Ends the process with a text as reason, if no thread
        calls `wait` within a minute after the deadline.
    """
    self._directory = directory
    self._timeout_secs = timeout_secs
    self._end_process = end_process
    self._lock = threading.Lock()
    # When a file changed; None while nothing is limited.
    self._changed_at: float | None = None
    self._has_raised = False

  @contextlib.contextmanager
  def limiting(self) -> Iterator[None]:
    """Limits the block, in the thread that writes."""
    if isinstance(self._directory, storage.BucketPath):
      yield
      return
    stop = threading.Event()
    self._set(time.monotonic())
    for target in (self._observe, self._enforce):
      threading.Thread(target=target, args=(stop,), daemon=True).start()
    try:
      yield
    finally:
      stop.set()
      self._set(None)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Does not limit the block, which waits for other processes."""
    is_limiting = self._changed_at is not None
    self._set(None)
    try:
      yield
    finally:
      self._set(time.monotonic() if is_limiting else None)

  def is_over(self) -> bool:
    """Returns whether the save that is running makes no progress."""
    return self._overdue_secs() > 0

  def wait(self, pending: futures.Future[None]) -> None:
    """Waits for a save; raises its error.

    Args:
      pending: The save.

    Raises:
      CheckpointTimeoutError: It makes no progress.
    """
    while not futures.wait([pending], self._poll_secs()).done:
      if self.is_over():
        self._has_raised = True
        raise CheckpointTimeoutError(self._message())
    pending.result()

  def _set(self, changed_at: float | None) -> None:
    with self._lock:
      self._changed_at = changed_at

  def _poll_secs(self) -> float:
    return min(self._timeout_secs / _LOOKS_PER_TIMEOUT, _MAX_POLL_SECS)

  def _overdue_secs(self) -> float:
    changed_at = self._changed_at
    if changed_at is None:
      return 0.0
    return max(time.monotonic() - changed_at - self._timeout_secs, 0.0)

  def _message(self) -> str:
    return (
      f'a checkpoint in {self._directory} cannot be written: no file changed'
      f' for {self._timeout_secs:g} s (--async_timeout_secs); its file system'
      ' hangs. The checkpoints before it are untouched'
    )

  def _observe(self, stop: threading.Event) -> None:
    """Notes when files change; hangs if the file system does."""
    pause = min(self._timeout_secs / _LOOKS_PER_TIMEOUT, _MAX_LOOK_SECS)
    previous: tuple[int, int] | None = None
    while not stop.wait(pause):
      try:
        current = _measure(self._directory)
      except OSError:
        # Such as a stale handle of NFS: the next look may succeed.
        continue
      with self._lock:
        is_limiting = self._changed_at is not None and not stop.is_set()
        if is_limiting and current != previous:
          self._changed_at = time.monotonic()
      previous = current

  def _enforce(self, stop: threading.Event) -> None:
    while not stop.wait(self._poll_secs()):
      if self._has_raised or self._end_process is None:
        return
      if self._overdue_secs() > _GRACE_SECS:
        self._end_process(self._message())


def _measure(directory: storage.Path) -> tuple[int, int]:
  """Returns number and size of the files that are written or deleted."""
  count = size = 0
  for folder in directory.glob(f'{paths.TEMPORARY}*'):
    for parent, _, names in os.walk(folder):
      for name in names:
        # Files appear under other names, and vanish.
        with contextlib.suppress(OSError):
          size += os.stat(os.path.join(parent, name)).st_size
          count += 1
  return count, size
