# SPDX-License-Identifier: Apache-2.0
"""The lock of a job directory: only one run may train in it.

The lock is a `flock` on the directory itself, so that it cannot be deleted, and
one on `.lock` in it: NFS has no locks of directories. The system releases both
when the process ends. `.lock` also has the process, for the message to others.

A file system without locks gets a lease.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import time

from absl import logging

from pax.files import side_files
from pax.runner import lease

_POLL_SECS = 0.1


class JobLock:
  """The lock of a directory, held until `close`."""

  def __init__(self, directory: pathlib.Path):
    """Locks the directory.

    On a file system without locks, waits for the lease of a process that has
    ended without releasing it.

    Raises:
      LockedError: Another process holds the lock.
      OSError: The directory cannot be opened.
    """
    self._directory = directory
    self._holder = lease.create_holder()
    self._lease: lease.Lease | None = None
    self._descriptors: list[int] = []
    try:
      flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
      is_held = self._lock(os.open(directory, flags))
      self._needs_file = not is_held
      is_file_held = self._lock_file()
      if not (is_held or is_file_held):
        logging.warning(
          'The file system of %s has no locks: %s has a lease instead',
          directory,
          directory / lease.FILE,
        )
        self._lease = lease.Lease(directory, self._holder)
    except BaseException:
      self.close()
      raise

  @property
  def run_id(self) -> str:
    """Identifies this run in `.lock`."""
    return self._holder['run_id']

  def check(self) -> None:
    """Locks `.lock` again if it was deleted.

    Raises:
      LockedError: Another process holds the lock.
    """
    holder = lease.read_holder(self._directory)
    if holder and holder['run_id'] == self.run_id:
      return
    if self._lease:
      self._lease.check()
    elif holder is None or self._needs_file:
      self._lock_file()

  def close(self) -> None:
    """Releases the lock."""
    if self._lease:
      self._lease.close()
    descriptors, self._descriptors = self._descriptors, []
    for descriptor in descriptors:
      with contextlib.suppress(OSError):
        os.close(descriptor)

  def _lock_file(self) -> bool:
    """Locks `.lock`, and writes this process into it."""
    path = self._directory / lease.FILE
    with side_files.tolerate_errors(path):
      if os.path.lexists(path) and not path.is_file():
        side_files.set_aside(path, 'it is not a regular file')
      flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
      descriptor = os.open(path, flags, 0o666)
      is_held = self._lock(descriptor)
      if is_held or not self._needs_file:
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
      holder = lease.read_holder(self._directory)
      raise lease.locked_error(self._directory, holder) from None
    except OSError:
      return False
    return True


def wait_until_free(directory: pathlib.Path, timeout_secs: float) -> None:
  """Waits until no run trains in the directory, or for `timeout_secs`."""
  deadline = time.monotonic() + timeout_secs
  while directory.exists() and time.monotonic() < deadline:
    try:
      JobLock(directory).close()
      return
    except lease.LockedError:
      time.sleep(_POLL_SECS)
