# SPDX-License-Identifier: Apache-2.0
"""Flushes files to the disk while a library is still writing others."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import TypeVar

from pax.files import atomic_file

Path = pathlib.Path
T = TypeVar('T')

# Smaller files are flushed at the end, all together.
_MIN_BYTES = 2**20
_FLUSH_THREADS = 16
# TensorStore renames a file with this ending when it is complete.
_INCOMPLETE = '.__lock'
_MIN_POLL_SECS = 0.003
_MAX_POLL_SECS = 1.0
# The longer the writing, the later a file may be found: by this part of it.
_POLL_FRACTION = 0.05


@dataclasses.dataclass(frozen=True)
class _Version:
  """A file as it was at one time."""

  size: int
  mtime_ns: int

  @classmethod
  def of(cls, file: str) -> _Version:
    """Returns the version of a path."""
    status = os.stat(file)
    return cls(status.st_size, status.st_mtime_ns)


class BackgroundFlush:
  """Flushes the files of a folder from when they are written.

  A file under its final name is taken as complete. If it does change later, it
  is flushed again at the end.
  """

  def __init__(self, directory: Path, folder: str):
    """Starts no thread yet.

    Args:
      directory: The checkpoint.
      folder: Path below the checkpoint, of a folder that may not exist yet.
    """
    self._directory = directory
    self._folder = folder
    # By path below the checkpoint, with the version that is flushed.
    self._flushes: dict[str, tuple[_Version, futures.Future[None]]] = {}
    self._stop = threading.Event()
    self._pool = futures.ThreadPoolExecutor(_FLUSH_THREADS, 'flush')
    self._watcher = threading.Thread(target=self._watch, daemon=True)

  def __enter__(self) -> BackgroundFlush:
    self._watcher.start()
    return self

  def __exit__(self, *error: object) -> None:
    self._stop_watching()
    self._pool.shutdown(wait=False, cancel_futures=True)

  def finish(self, meanwhile: Callable[[], T]) -> T:
    """Calls a function while the last files are flushed; returns its result.

    All files are written before, and on the disk on return.

    Args:
      meanwhile: The function, which does not change the files.

    Raises:
      OSError: A file cannot be flushed.
    """
    self._stop_watching()
    versions = dict(self._versions())
    for name, version in versions.items():
      if name not in self._flushes or self._flushes[name][0] != version:
        self._start(name, version)
    result = meanwhile()
    for name in versions:
      _, flush = self._flushes[name]
      flush.result()
    return result

  def _stop_watching(self) -> None:
    self._stop.set()
    if self._watcher.is_alive():
      self._watcher.join()

  def _watch(self) -> None:
    start = time.monotonic()
    pause = _MIN_POLL_SECS
    while not self._stop.wait(pause):
      for name, version in self._versions(self._is_new):
        if version.size >= _MIN_BYTES:
          self._start(name, version)
      seconds = _POLL_FRACTION * (time.monotonic() - start)
      pause = min(max(seconds, _MIN_POLL_SECS), _MAX_POLL_SECS)

  def _is_new(self, name: str) -> bool:
    return name not in self._flushes and not name.endswith(_INCOMPLETE)

  def _start(self, name: str, version: _Version) -> None:
    flush = self._pool.submit(atomic_file.sync, self._directory / name)
    self._flushes[name] = version, flush

  def _versions(
    self, is_selected: Callable[[str], bool] = lambda name: True
  ) -> Iterator[tuple[str, _Version]]:
    """Yields the paths below the checkpoint of all files that are selected."""
    for parent, _, names in os.walk(self._directory / self._folder):
      folder = os.path.relpath(parent, self._directory)
      for name in (os.path.join(folder, name) for name in names):
        # Temporary names vanish.
        with contextlib.suppress(FileNotFoundError):
          if is_selected(name):
            yield name, _Version.of(os.path.join(self._directory, name))
