# SPDX-License-Identifier: Apache-2.0
"""Leases of job directories whose storage has no locks.

The holder of a lease writes `.lock` anew every few seconds, to a local file or
to an object in a bucket. The lease of a killed process expires when the file
has not changed for a while; on the same host it is free at once.
"""

from __future__ import annotations

import contextlib
import datetime
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

from pax.files import atomic_file, side_files, storage

FILE = '.lock'
_RENEW_SECS = 5.0
# The holder may be unable to write for most of this time.
_EXPIRY_SECS = 30.0
# Longest delay of a write of another process that has found the lease expired.
_SETTLE_SECS = 1.0
_POLL_SECS = 0.1

# The leases that this process holds.
_own_run_ids: set[str] = set()


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
  # Unique for each start of the operating system.
  boot_id: NotRequired[str]
  # Processes of different namespaces (containers) do not find each other.
  pid_namespace: NotRequired[str]
  # Number of renewals of a lease.
  renewals: NotRequired[int]


def create_holder() -> Holder:
  """Returns a new run of this process."""
  return Holder(
    pid=os.getpid(),
    host=socket.gethostname(),
    run_id=uuid.uuid4().hex,
    user=_user(),
    since=time.time(),
    boot_id=_boot_id(),
    pid_namespace=_pid_namespace(),
  )


class Lease:
  """The right to train in a directory, held until `close`.

  It expires unless the holder renews it.
  """

  def __init__(self, directory: storage.Path, holder: Holder | None = None):
    """Takes the lease; waits for one that may have expired.

    Args:
      directory: The job directory.
      holder: This process; None is a new run of it.

    Raises:
      LockedError: Another process renews the lease.
      OSError: `.lock` cannot be read or written.
    """
    self._directory = directory
    self._file = directory / FILE
    self._holder = holder or create_holder()
    self._holder['renewals'] = 0
    self._acquire()
    _own_run_ids.add(self._holder['run_id'])
    self._is_closed = threading.Event()
    self._thread = threading.Thread(
      target=self._renew_at_intervals, name='lease', daemon=True
    )
    self._thread.start()

  def check(self) -> None:
    """Checks that this process holds the lease.

    Raises:
      LockedError: Another process has taken it.
    """
    try:
      holder = _read(self._file)
    except OSError:
      # The save that follows reports a directory that cannot be reached.
      return
    if holder and holder['run_id'] != self._holder['run_id']:
      raise locked_error(self._directory, holder)

  def close(self) -> None:
    """Ends the lease, so that the next process need not wait."""
    self._is_closed.set()
    self._thread.join()
    _own_run_ids.discard(self._holder['run_id'])
    with contextlib.suppress(OSError, LockedError):
      self.check()
      self._file.unlink(missing_ok=True)

  def _acquire(self) -> None:
    text = self._serialize()
    try:
      if isinstance(self._file, storage.BucketPath):
        self._file.write_bytes(text.encode(), is_exclusive=True)
      else:
        with self._file.open('x') as file:
          file.write(text)
    except FileExistsError:
      holder = _read(self._file)
      if holder is not None:
        self._await_expiry(holder)
      atomic_file.write_text(self._file, text)
      # Another process may have found it expired at the same time: the last
      # one to write holds it.
      time.sleep(_SETTLE_SECS)
    self.check()

  def _await_expiry(self, holder: Holder) -> None:
    """Returns when the lease is free or has expired.

    Args:
      holder: Its holder.

    Raises:
      LockedError: The holder has renewed it.
    """
    if _is_dead(holder):
      return
    logging.warning(
      'Waiting up to %g s: %s has the lease of another process%s',
      _EXPIRY_SECS,
      self._file,
      _description(holder),
    )
    deadline = time.monotonic() + _EXPIRY_SECS
    is_bucket = isinstance(self._file, storage.BucketPath)
    while time.monotonic() < deadline:
      time.sleep(_SETTLE_SECS if is_bucket else _POLL_SECS)
      current = _read(self._file)
      if current is None:
        return
      if current != holder:
        raise locked_error(self._directory, current)

  def _renew_at_intervals(self) -> None:
    while not self._is_closed.wait(_RENEW_SECS):
      self._holder['renewals'] = self._holder.get('renewals', 0) + 1
      try:
        self.check()
        atomic_file.write_text(self._file, self._serialize())
      except LockedError:
        return  # The next check of the training loop ends the run.
      except OSError as e:
        side_files.report_unwritable(self._file, e)

  def _serialize(self) -> str:
    return f'{json.dumps(self._holder)}\n'


def read_holder(directory: storage.Path) -> Holder | None:
  """Returns the content of `.lock`; None if it cannot be read."""
  try:
    return _read(directory / FILE)
  except OSError:
    return None


def locked_error(directory: storage.Path, holder: Holder | None) -> LockedError:
  """Returns the error of a second process, which names the holder."""
  return LockedError(
    f'another process trains in --job_log_dir={directory}'
    f'{_description(holder)}; stop it or use another directory'
  )


def _is_dead(holder: Holder) -> bool:
  """Returns whether the holder was a process of this host that has ended."""
  if holder['host'] != socket.gethostname() or 'boot_id' not in holder:
    return False
  if holder['boot_id'] != _boot_id():
    return True
  if holder.get('pid_namespace') != _pid_namespace():
    return False
  if holder['pid'] == os.getpid():
    return holder['run_id'] not in _own_run_ids
  try:
    os.kill(holder['pid'], 0)
  except ProcessLookupError:
    return True
  except OSError:
    pass
  return False


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


def _boot_id() -> str:
  try:
    return pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
  except OSError:
    return ''


def _pid_namespace() -> str:
  try:
    return os.readlink('/proc/self/ns/pid')
  except OSError:
    return ''


def _read(file: storage.Path) -> Holder | None:
  """Returns the content of `.lock`; None if it is missing or damaged.

  Raises:
    OSError: It cannot be read.
  """
  try:
    return _parse(json.loads(side_files.read_bytes(file)))
  except (FileNotFoundError, *side_files.INVALID):
    return None


def _parse(value: Any) -> Holder:
  required = {'pid': int, 'host': str, 'run_id': str}
  # Older versions do not write them.
  optional = {
    'user': str,
    'since': float,
    'boot_id': str,
    'pid_namespace': str,
    'renewals': int,
  }
  present = {name: optional[name] for name in optional.keys() & value.keys()}
  side_files.check_fields(value, required | present)
  return value
