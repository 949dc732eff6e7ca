# SPDX-License-Identifier: Apache-2.0
"""Limit of the time in which a restore reads nothing.

Calls of a file system that hangs never return, and no thread can cancel them:
another thread ends the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator

from pax.files import storage

# Looks at the counters per timeout, and the longest time between two.
_LOOKS_PER_TIMEOUT = 20
_MAX_LOOK_SECS = 1.0
# On Linux, a folder per thread.
_THREADS = pathlib.Path('/proc/self/task')
_COUNTERS = 'io'
_HAS_COUNTERS = pathlib.Path('/proc/thread-self', _COUNTERS).exists()


@dataclasses.dataclass(frozen=True)
class _Deadline:
  # Longest time without a byte that a thread reads.
  timeout_secs: float
  # Ends the process with a text as reason.
  end_process: Callable[[str], None]


# The deadline of the program; None in a library, which ends no process.
_deadline: _Deadline | None = None


@contextlib.contextmanager
def enforced(
  timeout_secs: float, end_process: Callable[[str], None]
) -> Iterator[None]:
  """While entered, a restore that hangs ends the process.

  Args:
    timeout_secs: Longest time without a byte that is read.
    end_process: Ends the process with a text as reason.
  """
  global _deadline
  previous, _deadline = _deadline, _Deadline(timeout_secs, end_process)
  try:
    yield
  finally:
    _deadline = previous


@contextlib.contextmanager
def limiting(path: storage.Path) -> Iterator[None]:
  """Limits the block, which reads files.

  Buckets are not limited: each request has a timeout. Nor are systems that do
  not count the bytes that a thread reads.

  Args:
    path: A checkpoint, or the folder of checkpoints.
  """
  deadline = _deadline
  is_bucket = isinstance(path, storage.BucketPath)
  if deadline is None or is_bucket or not _HAS_COUNTERS:
    yield
    return
  stop = threading.Event()
  threading.Thread(
    target=_observe, args=(path, deadline, stop), daemon=True
  ).start()
  try:
    yield
  finally:
    stop.set()


def _observe(
  path: storage.Path, deadline: _Deadline, stop: threading.Event
) -> None:
  timeout_secs = deadline.timeout_secs
  previous, changed_at = _bytes_read(), time.monotonic()
  while not stop.wait(min(timeout_secs / _LOOKS_PER_TIMEOUT, _MAX_LOOK_SECS)):
    current = _bytes_read()
    if current != previous:
      previous, changed_at = current, time.monotonic()
    elif time.monotonic() - changed_at > timeout_secs:
      deadline.end_process(
        f'{path} cannot be read: no byte was read for {timeout_secs:g} s'
        ' (--async_timeout_secs); its file system hangs. Nothing was changed'
      )
      return


def _bytes_read() -> int:
  """Returns the bytes that the other threads have read."""
  own = str(threading.get_native_id())
  return sum(_count(thread) for thread in os.listdir(_THREADS) if thread != own)


def _count(thread: str) -> int:
  try:
    text = (_THREADS / thread / _COUNTERS).read_text()
  except (FileNotFoundError, ProcessLookupError):
    # The thread has ended.
    return 0
  return int(text.partition('rchar:')[2].split()[0])
