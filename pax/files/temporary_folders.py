# SPDX-License-Identifier: Apache-2.0
"""Temporary local folders that the next process removes after SIGKILL."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
import weakref

_PREFIX = 'pax_'
_UNSAVED = 'unsaved_'


class TemporaryFolder:
  """A new folder in TMPDIR, removed by `close`, or with this object.

  Its process holds a lock of the folder. Folders of the same kind without one
  belong to killed processes, and are removed when the next one is made.
  """

  def __init__(self, kind: str):
    """Makes the folder.

    Args:
      kind: First part of the name of the folder, such as 'checkpoint'.

    Raises:
      OSError: It cannot be made.
    """
    prefix = f'{_PREFIX}{kind}_'
    _remove_stale(prefix)
    self.path, self._descriptor = _make_locked(prefix)
    self._close = weakref.finalize(self, _remove, self.path, self._descriptor)

  def close(self) -> None:
    """Removes the folder."""
    self._close()

  def keep(self) -> pathlib.Path:
    """Renames the folder so that it remains; returns its path."""
    self._close.detach()
    kept = self.path.with_name(f'{_UNSAVED}{self.path.name}')
    try:
      self.path.rename(kept)
    finally:
      os.close(self._descriptor)
    return kept


def _make_locked(prefix: str) -> tuple[pathlib.Path, int]:
  """Makes a folder; returns it and the descriptor that locks it.

  Until it is locked, another process may remove it as stale.
  """
  while True:
    path = pathlib.Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix)))
    try:
      descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
      continue
    with contextlib.suppress(OSError):  # The file system has no locks.
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    if os.fstat(descriptor).st_nlink:
      return path, descriptor
    os.close(descriptor)


def _remove_stale(prefix: str) -> None:
  for path in pathlib.Path(tempfile.gettempdir()).glob(f'{prefix}*'):
    with contextlib.suppress(OSError):
      if path.lstat().st_uid != os.getuid():
        continue
      flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
      descriptor = os.open(path, flags)
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
      finally:
        os.close(descriptor)


def _remove(path: pathlib.Path, descriptor: int) -> None:
  shutil.rmtree(path, ignore_errors=True)
  os.close(descriptor)
