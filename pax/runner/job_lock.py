# SPDX-License-Identifier: Apache-2.0
"""The lock of a job directory: only one run may train in it.

The lock is a `flock` on the directory itself, so that it cannot be deleted, and
one on `.lock` in it: NFS has no locks of directories. The system releases both
when the process ends. `.lock` also has the process, for the message to others.

A file system without locks gets a lease: the process that trains counts up a
number in `.lock`. Another process takes the directory when the number has not
changed for a while.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import getpass
import json
import os
import pathlib
import socket
import threading
import time
import uuid
from typing import Any, NotRequired, TypedDict

from absl import logging

from pax import atomic_file, side_files

FILE = '.lock'
_POLL_SECS = 0.1
# Seconds between two counts of a lease, and after which it has expired.
_COUNT_SECS = 5.0
_LEASE_SECS = 30.0


class LockedError(ValueError):
  """Another process trains in the directory."""


class Holder(TypedDict):
  """The process that trains in the directory; content of `.lock`."""

  pid: int
  host: str
  # Unique for each run.
  run_id: str
  user: NotRequired[str]
  # Seconds since 1970.
  since: NotRequired[float]
  # Number of counts of a lease; -1 after its end.
  count: NotRequired[int]


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
    self._holder = Holder(
      pid=os.getpid(),
      host=socket.gethostname(),
      run_id=uuid.uuid4().hex,
      user=_user(),
      since=time.time(),
    )
    self._lease: _Lease | None = None
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
          directory / FILE,
        )
        self._lease = _Lease(directory, self._holder)
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
    holder = read_holder(self._directory)
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
    path = self._directory / FILE
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
      raise _locked_error(self._directory) from None
    except OSError:
      return False
    return True


class _Lease:
  """The right to train in a directory, which expires unless it is renewed."""

  def __init__(self, directory: pathlib.Path, holder: Holder):
    """Takes the lease when that of another process has expired.

    Raises:
      LockedError: Another process renews the lease.
      OSError: `.lock` cannot be written.
    """
    self._directory = directory
    self._holder = holder
    self._closed = threading.Event()
    self._wait_for_end(time.monotonic() + _LEASE_SECS)
    self._write(0)
    self._thread = threading.Thread(
      target=self._renew, name='job lease', daemon=True
    )
    self._thread.start()

  def check(self) -> None:
    """Checks that no other process has taken the lease.

    Raises:
      LockedError: Another one has.
    """
    holder = read_holder(self._directory)
    if holder and holder['run_id'] != self._holder['run_id']:
      raise _locked_error(self._directory)

  def close(self) -> None:
    """Ends the lease, so that the next process need not wait."""
    self._closed.set()
    self._thread.join()
    with contextlib.suppress(OSError, LockedError):
      self.check()
      self._write(-1)

  def _wait_for_end(self, deadline: float) -> None:
    first = read_holder(self._directory)
    if first and first.get('count', -1) >= 0:
      logging.warning(
        'Waiting up to %g s: %s has the lease of another process%s',
        _LEASE_SECS,
        self._directory / FILE,
        _description(first),
      )
    while (holder := read_holder(self._directory)) is not None:
      if holder != first:
        raise _locked_error(self._directory)
      if holder.get('count', -1) < 0 or time.monotonic() > deadline:
        return
      time.sleep(_POLL_SECS)

  def _renew(self) -> None:
    count = 0
    while not self._closed.wait(_COUNT_SECS):
      count += 1
      with contextlib.suppress(OSError):
        try:
          self.check()
        except LockedError:
          return
        self._write(count)

  def _write(self, count: int) -> None:
    holder = {**self._holder, 'count': count}
    # Complete at any time: it is renamed.
    atomic_file.write_text(self._directory / FILE, f'{json.dumps(holder)}\n')


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


def _locked_error(directory: pathlib.Path) -> LockedError:
  return LockedError(
    f'another process trains in --job_log_dir={directory}'
    f'{_description(read_holder(directory))}; stop it or use another directory'
  )


def _description(holder: Holder | None) -> str:
  if holder is None:
    return ''
  parts = [f'pid {holder["pid"]} on {holder["host"]}']
  if 'user' in holder:
    parts.append(f'user {holder["user"]}')
  if 'since' in holder:
    began = datetime.datetime.fromtimestamp(holder['since'], datetime.UTC)
    parts.append(f'since {began:%Y-%m-%d %H:%M:%S} UTC')
  return f' ({", ".join(parts)})'


def _user() -> str:
  try:
    return getpass.getuser()
  except (KeyError, OSError):
    # No name for the number of the user, as in some containers.
    return str(os.getuid())


def _parse(value: Any) -> Holder:
  required = {'pid': int, 'host': str, 'run_id': str}
  # Older versions do not write them.
  optional = {'user': str, 'since': float, 'count': int}
  present = {name: optional[name] for name in optional.keys() & value.keys()}
  side_files.check_fields(value, required | present)
  return value
