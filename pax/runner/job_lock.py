# SPDX-License-Identifier: Apache-2.0
"""The lock of a job directory: only one run may train in it.

The lock is a `flock` on the directory itself, so that it cannot be deleted, and
one on `.lock` in it: NFS has no locks of directories. The system releases both
when the process ends. `.lock` also has the process, for the message to others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import time
import uuid
from typing import Any, TypedDict

from absl import logging

from pax import side_files

FILE = '.lock'
_POLL_SECS = 0.1


class LockedError(ValueError):
  """Another process trains in the directory."""


class Holder(TypedDict):
  """The process that trains in the directory; content of `.lock`."""

  pid: int
  host: str
  # Unique for each run.
  run_id: str


class JobLock:
  """The lock of a directory, held until `close`."""

  def __init__(self, directory: pathlib.Path):
    """Locks the directory.

    A file system without locks is a warning.

    Raises:
      LockedError: Another process holds the lock.
      OSError: The directory cannot be opened.
    """
    self._directory = directory
    self._holder = Holder(
      pid=os.getpid(), host=socket.gethostname(), run_id=uuid.uuid4().hex
    )
    self._descriptors: list[int] = []
    try:
      flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
      is_held = self._lock(os.open(directory, flags))
      is_file_held = self._lock_file()
    except BaseException:
      self.close()
      raise
    self._needs_file = not is_held
    if not (is_held or is_file_held):
      logging.warning(
        'The file system of %s has no locks: make sure that no other run trains'
        ' in it',
        directory,
      )

  @property
  def run_id(self) -> str:
    """Identifies this run in `.lock`."""
    return self._holder['run_id']

  def check(self) -> None:
    """Locks `.lock` again if it was deleted.

    Raises:
      LockedError: Another process holds the lock.
    """
    holder = read_holder(self._directory)
    if holder and holder['run_id'] == self.run_id:
      return
    if holder is None or self._needs_file:
      self._lock_file()

  def close(self) -> None:
    """Releases the lock."""
    descriptors, self._descriptors = self._descriptors, []
    for descriptor in descriptors:
      with contextlib.suppress(OSError):
        os.close(descriptor)

  def _lock_file(self) -> bool:
    """Locks `.lock`, and writes this process into it."""
    path = self._directory / FILE
    with side_files.tolerate_errors(path):
      if os.path.lexists(path) and not path.is_file():
        side_files.set_aside(path, 'it is not a regular file')
      flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
      descriptor = os.open(path, flags, 0o666)
      is_held = self._lock(descriptor)
      os.truncate(descriptor, 0)
      os.pwrite(descriptor, f'{json.dumps(self._holder)}\n'.encode(), 0)
      return is_held
    return False

  def _lock(self, descriptor: int) -> bool:
    """Locks an open file; returns False if its file system has no locks."""
    self._descriptors.append(descriptor)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise LockedError(
        f'another process trains in --job_log_dir={self._directory}'
        f'{_location(self._directory)}; stop it or use another directory'
      ) from None
    except OSError:
      return False
    return True


def read_holder(directory: pathlib.Path) -> Holder | None:
  """Returns the content of `.lock`; None if it is missing or damaged."""
  try:
    return _parse(json.loads(side_files.read_bytes(directory / FILE)))
  except (OSError, *side_files.INVALID):
    return None


def wait_until_free(directory: pathlib.Path, timeout_secs: float) -> None:
  """Waits until no run trains in the directory, or for `timeout_secs`."""
  deadline = time.monotonic() + timeout_secs
  while directory.exists() and time.monotonic() < deadline:
    try:
      JobLock(directory).close()
      return
    except LockedError:
      time.sleep(_POLL_SECS)


def _location(directory: pathlib.Path) -> str:
  holder = read_holder(directory)
  return f' (pid {holder["pid"]} on {holder["host"]})' if holder else ''


def _parse(value: Any) -> Holder:
  side_files.check_fields(value, {'pid': int, 'host': str, 'run_id': str})
  return value
