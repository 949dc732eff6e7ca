# SPDX-License-Identifier: Apache-2.0
"""The lock of a job directory in a bucket: only one run may train in it.

The lock is the object `.lock`, which is created only if there is none, and
which its holder writes anew every few seconds. The lock of a killed run expires
when it has not changed for a while; on the same host it is free at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import threading
import time
import uuid
from typing import Any, TypedDict

from absl import logging

from pax import side_files, storage
from pax.runner.job_lock import FILE, LockedError

_RENEW_SECS = 5.0
# The holder may be unable to write for most of this time.
_EXPIRY_SECS = 30.0
# Longest delay of a write of another run that has found the lock expired.
_SETTLE_SECS = 1.0


class Holder(TypedDict):
  """The process that trains in the directory; content of `.lock`."""

  pid: int
  host: str
  # Unique for each run.
  run_id: str
  # Unique for each start of the operating system.
  boot_id: str
  # Number of renewals.
  renewals: int


class BucketLock:
  """The lock of a directory in a bucket, held until `close`."""

  def __init__(self, directory: storage.BucketPath):
    """Locks the directory; waits for a lock that may have expired.

    Raises:
      LockedError: Another process holds the lock.
      OSError: The bucket cannot be read or written.
    """
    self._directory = directory
    self._file = directory / FILE
    self._holder = Holder(
      pid=os.getpid(),
      host=socket.gethostname(),
      run_id=uuid.uuid4().hex,
      boot_id=_boot_id(),
      renewals=0,
    )
    self._acquire()
    self._is_closed = threading.Event()
    self._thread = threading.Thread(
      target=self._renew_at_intervals, name='bucket lock', daemon=True
    )
    self._thread.start()

  def check(self) -> None:
    """Checks that this run holds the lock.

    Raises:
      LockedError: Another run has taken it.
    """
    try:
      holder = _read(self._file)
    except OSError:
      # The save that follows reports a bucket that cannot be reached.
      return
    if holder and holder['run_id'] != self._holder['run_id']:
      raise _locked_error(self._directory, holder)

  def close(self) -> None:
    """Releases the lock."""
    self._is_closed.set()
    self._thread.join()
    with contextlib.suppress(OSError, LockedError):
      self.check()
      self._file.unlink(missing_ok=True)

  def _acquire(self) -> None:
    try:
      self._write(is_exclusive=True)
    except FileExistsError:
      holder = _read(self._file)
      if holder is not None:
        _await_expiry(self._directory, holder)
      self._write()
      # Another run may have found it expired at the same time: the last one
      # to write holds it.
      time.sleep(_SETTLE_SECS)
    self.check()

  def _write(self, *, is_exclusive: bool = False) -> None:
    text = f'{json.dumps(self._holder)}\n'
    self._file.write_bytes(text.encode(), is_exclusive=is_exclusive)

  def _renew_at_intervals(self) -> None:
    while not self._is_closed.wait(_RENEW_SECS):
      self._holder['renewals'] += 1
      try:
        self.check()
        self._write()
      except LockedError:
        return  # The next check of the training loop ends the run.
      except OSError as e:
        side_files.report_unwritable(self._file, e)


def _await_expiry(directory: storage.BucketPath, holder: Holder) -> None:
  """Returns when the lock is free or has expired.

  Raises:
    LockedError: Its holder has renewed it.
  """
  if _is_dead(holder):
    return
  logging.warning(
    '%s is locked by pid %d on %s; waiting up to %g s for the lock to expire',
    directory,
    holder['pid'],
    holder['host'],
    _EXPIRY_SECS,
  )
  deadline = time.monotonic() + _EXPIRY_SECS
  while time.monotonic() < deadline:
    time.sleep(_SETTLE_SECS)
    current = _read(directory / FILE)
    if current is None:
      return
    if current != holder:
      raise _locked_error(directory, current)


def _is_dead(holder: Holder) -> bool:
  """Returns whether the holder was a process of this host that has ended."""
  if holder['host'] != socket.gethostname():
    return False
  if holder['boot_id'] != _boot_id() or holder['pid'] == os.getpid():
    return True
  try:
    os.kill(holder['pid'], 0)
  except ProcessLookupError:
    return True
  except OSError:
    pass
  return False


def _boot_id() -> str:
  try:
    return pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
  except OSError:
    return ''


def _read(file: storage.BucketPath) -> Holder | None:
  """Returns the content of `.lock`; None if it is missing or damaged."""
  try:
    return _parse(json.loads(file.read_bytes()))
  except (FileNotFoundError, *side_files.INVALID):
    return None


def _parse(value: Any) -> Holder:
  fields = {
    'pid': int,
    'host': str,
    'run_id': str,
    'boot_id': str,
    'renewals': int,
  }
  side_files.check_fields(value, fields)
  return value


def _locked_error(directory: storage.BucketPath, holder: Holder) -> LockedError:
  return LockedError(
    f'another process trains in --job_log_dir={directory} (pid'
    f' {holder["pid"]} on {holder["host"]}); stop it or use another directory'
  )
