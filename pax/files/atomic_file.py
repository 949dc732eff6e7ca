# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their name only when they are complete.

A durable file is on the disk when it appears: a power failure leaves the older
file or the new one. An object in a bucket (`storage.BucketPath`) is replaced by
one request.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import io
import os
import pathlib
import socket
import time
import uuid
from collections.abc import Iterator
from typing import BinaryIO

from pax.files import storage

PathLike = storage.PathLike

# Errors of folders that cannot be flushed: the file system has no such call, or
# the folder may be written and not read.
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)

_PART = '.part'
# Temporary files of other hosts are stale after this time.
_MAX_AGE_SECS = 24 * 3600
_MAX_HOST_CHARS = 40


class AtomicFile:
  """A binary file under a temporary name; `commit` renames it to `path`."""

  def __init__(self, path: PathLike, *, is_durable: bool = True):
    """Opens a temporary file in the folder of `path`.

    Args:
      path: The file. Its folder exists: that of a job which was deleted must
        not appear anew.
      is_durable: Whether `commit` flushes to the disk; False suits files that
        nothing depends on and that are written again, such as plots.
    """
    self._path = pathlib.Path(path)
    self._is_durable = is_durable
    # Several processes, perhaps of several hosts, may write the same path.
    self._part, self.file = _open_locked(self._path)
    # Holds the lock until the file has its name.
    self._lock = os.fdopen(os.dup(self.file.fileno()), 'wb')
    _remove_stale_parts(self._path)

  def commit(self) -> None:
    """Closes the file and replaces `path` by it."""
    if self._is_durable:
      self.file.flush()
      os.fsync(self.file.fileno())
    self.file.close()
    self._part.replace(self._path)
    self._lock.close()
    if self._is_durable:
      sync(self._path.parent)

  def discard(self) -> None:
    """Closes and deletes the file; `path` stays unchanged."""
    # Closing flushes: after an error of writing it fails again.
    with contextlib.suppress(OSError):
      self.file.close()
    with contextlib.suppress(OSError):
      self._part.unlink()
    self._lock.close()


def _open_locked(path: pathlib.Path) -> tuple[pathlib.Path, BinaryIO]:
  """Opens a temporary file for `path`; a lock shows that it is in use."""
  while True:
    suffix = f'{_host()}.{uuid.uuid4().hex[:12]}{_PART}'
    part = path.with_name(f'{path.name}.{suffix}')
    file = part.open('xb')
    with contextlib.suppress(OSError):  # The file system has no locks.
      fcntl.flock(file, fcntl.LOCK_EX)
    # Another process may have deleted it as stale before it was locked.
    if os.fstat(file.fileno()).st_nlink:
      return part, file
    file.close()


def _remove_stale_parts(path: pathlib.Path) -> None:
  """Deletes the temporary files that killed processes left for `path`.

  These are not locked. The locks of other hosts may not be visible here, so
  that only old files of theirs are deleted.
  """
  for part in path.parent.glob(f'{glob.escape(path.name)}.*{_PART}'):
    with contextlib.suppress(OSError), part.open('rb') as file:
      is_own = part.name.startswith(f'{path.name}.{_host()}.')
      age_secs = time.time() - os.fstat(file.fileno()).st_mtime
      if is_own or age_secs > _MAX_AGE_SECS:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()


def _host() -> str:
  return socket.gethostname()[:_MAX_HOST_CHARS]


@contextlib.contextmanager
def open_atomic(
  path: PathLike, *, is_durable: bool = True
) -> Iterator[BinaryIO]:
  """Opens a binary file that replaces `path` at the end of the `with` block.

  An exception in the block leaves `path` unchanged.

  Args:
    path: The file.
    is_durable: See `AtomicFile`.
  """
  if isinstance(path, storage.BucketPath):
    buffer = io.BytesIO()
    yield buffer
    path.write_bytes(buffer.getvalue())
    return
  file = AtomicFile(path, is_durable=is_durable)
  try:
    yield file.file
    file.commit()
  except BaseException:
    file.discard()
    raise


def write_text(path: PathLike, text: str, *, is_durable: bool = True) -> None:
  """Replaces `path` by a UTF-8 file of `text`; see `AtomicFile`."""
  with open_atomic(path, is_durable=is_durable) as file:
    file.write(text.encode())


def make_folder(path: PathLike, *, parents: bool = False) -> None:
  """Creates a folder durably, if it is missing.

  Args:
    path: The folder.
    parents: Whether to create its parents too.

  Raises:
    OSError: It cannot be created, or its parent does not exist.
  """
  if isinstance(path, storage.BucketPath):
    return
  path = pathlib.Path(path)
  missing = [p for p in (path, *path.parents) if not p.exists()]
  path.mkdir(parents=parents, exist_ok=True)
  for folder in missing:
    sync(folder.parent)


def sync(path: PathLike) -> None:
  """Flushes a file, or the names in a folder, to the disk.

  Raises:
    OSError: The file system reports an error.
  """
  try:
    descriptor = os.open(path, os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)
  except OSError as e:
    if not (os.path.isdir(path) and e.errno in _NOT_SUPPORTED):
      raise
