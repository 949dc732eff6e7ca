# SPDX-License-Identifier: Apache-2.0
"""Flushes and checksums files while a library is still writing others."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

from pax import atomic_file
from pax.checkpoints import manifest

Path = pathlib.Path

# Smaller files are flushed at the end, all together.
_MIN_BYTES = 2**20
_FLUSH_THREADS = 16
_MIN_POLL_SECS = 0.005
_MAX_POLL_SECS = 1.0
# Listing the folder takes at most this part of the time.
_POLL_FRACTION = 0.05


@dataclasses.dataclass(frozen=True)
class _Version:
  """A file as it was at one time."""

  size: int
  mtime_ns: int


@dataclasses.dataclass(frozen=True)
class _Task:
  """A flush and a checksum of one version of a file."""

  version: _Version
  flush: futures.Future[None]
  checksum: futures.Future[int]


class BackgroundFlush:
  """Flushes and checksums the files of a folder from when they are written.

  A file that did not change between two looks is taken as complete. If it does
  change later, it is flushed and read again at the end.
  """

  def __init__(self, directory: Path, folder: str):
    """Starts no thread yet.

    Args:
      directory: The checkpoint.
      folder: Path below the checkpoint, of a folder that may not exist yet.
    """
    self._directory = directory
    self._folder = folder
    self._tasks: dict[str, _Task] = {}
    self._stop = threading.Event()
    self._flushes = futures.ThreadPoolExecutor(_FLUSH_THREADS, 'flush')
    self._checksums = futures.ThreadPoolExecutor(os.cpu_count(), 'checksum')
    self._watcher = threading.Thread(target=self._watch, daemon=True)

  def __enter__(self) -> BackgroundFlush:
    self._watcher.start()
    return self

  def __exit__(self, *error: object) -> None:
    self._stop_watching()
    for pool in (self._flushes, self._checksums):
      pool.shutdown(wait=False, cancel_futures=True)

  def finish(
    self, meanwhile: Callable[[], None] = lambda: None
  ) -> dict[str, manifest.Entry]:
    """Returns the manifest entries of all files, which are on the disk then.

    Call it when all files are written.

    Args:
      meanwhile: Called while threads flush and checksum the last files, which
        it does not change.

    Raises:
      OSError: A file cannot be flushed or read.
    """
    self._stop_watching()
    versions = dict(self._versions())
    for name, version in versions.items():
      if name not in self._tasks or self._tasks[name].version != version:
        self._start(name, version)
    meanwhile()
    entries = {}
    for name, version in versions.items():
      task = self._tasks[name]
      task.flush.result()
      entries[name] = (version.size, task.checksum.result())
    return entries

  def _stop_watching(self) -> None:
    self._stop.set()
    if self._watcher.is_alive():
      self._watcher.join()

  def _watch(self) -> None:
    previous: dict[str, _Version] = {}
    pause = _MIN_POLL_SECS
    while not self._stop.wait(pause):
      start = time.monotonic()
      current = dict(self._versions())
      for name, version in current.items():
        if (
          version.size >= _MIN_BYTES
          and name not in self._tasks
          and previous.get(name) == version
        ):
          self._start(name, version)
      previous = current
      seconds = (time.monotonic() - start) / _POLL_FRACTION
      pause = min(max(seconds, _MIN_POLL_SECS), _MAX_POLL_SECS)

  def _start(self, name: str, version: _Version) -> None:
    path = self._directory / name
    self._tasks[name] = _Task(
      version,
      self._flushes.submit(atomic_file.sync, path),
      self._checksums.submit(
        manifest.checksum, self._directory, name, 0, version.size
      ),
    )

  def _versions(self) -> Iterator[tuple[str, _Version]]:
    """Yields the paths below the checkpoint of all files."""
    for parent, _, names in os.walk(self._directory / self._folder):
      for name in names:
        path = Path(parent, name)
        # Temporary names vanish.
        with contextlib.suppress(FileNotFoundError):
          status = path.stat()
          yield (
            str(path.relative_to(self._directory)),
            _Version(status.st_size, status.st_mtime_ns),
          )
