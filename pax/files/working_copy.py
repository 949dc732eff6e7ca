# SPDX-License-Identifier: Apache-2.0
"""Local working copies of job directories in buckets.

A job appends to logs, metrics and events, which a bucket cannot. It writes all
files of its directory but the checkpoints to a local copy; whole files that
have changed are uploaded at intervals, before each checkpoint, and at the end.
A killed job loses the lines since the last upload; its successor repeats their
steps.

Records that jobs in the same directory exchange are not in the copy: `origin`
has their place in the bucket.
"""

from __future__ import annotations

import pathlib
import threading
from concurrent import futures

from absl import logging

from pax.files import side_files, storage, temporary_folders

_UPLOAD_SECS = 30.0
_THREADS = 8
# Folders that a job does not read back. A restarted job writes unfinished
# outputs of evaluation and decoding again.
_NOT_DOWNLOADED = ('aot', 'checkpoints', 'output', 'summaries')
_OUTPUTS_SUFFIX = '_out'
# Temporary files of `atomic_file`, and the lock of the local directory.
_NOT_UPLOADED = ('.part', '.lock')

# Open copies: the directory in a bucket by the local one.
_open_copies: dict[pathlib.Path, WorkingCopy] = {}

# Modification time in ns and size.
_Version = tuple[int, int]


class WorkingCopy:
  """A local directory with the files of a directory in a bucket.

  Each process of a job has its own, and uploads the files that it has changed.
  """

  def __init__(self, source: storage.BucketPath, *, is_primary: bool = True):
    """Makes an empty directory; `download` fills it.

    Args:
      source: The directory in the bucket, which need not exist.
      is_primary: Whether files that are deleted here are deleted in the bucket;
        in one process of a job.
    """
    self.source = source
    self._is_primary = is_primary
    self._folder = temporary_folders.TemporaryFolder('job')
    self.path = self._folder.path
    self._uploaded: dict[str, _Version] = {}
    self._lock = threading.Lock()
    self._is_closed = threading.Event()
    self._thread: threading.Thread | None = None
    _open_copies[self.path] = self

  def download(self, upload_secs: float = _UPLOAD_SECS) -> None:
    """Downloads the files that jobs read back; then uploads at intervals.

    Args:
      upload_secs: Time between two uploads.

    Raises:
      OSError: The bucket cannot be read.
    """
    names = [
      name for name in self._remote_names() if not name.endswith(_NOT_UPLOADED)
    ]
    storage.download_tree(self.source, self.path, names)
    self._uploaded = self._versions()
    self._thread = threading.Thread(
      target=self._upload_at_intervals,
      args=(upload_secs,),
      name='working copy',
      daemon=True,
    )
    self._thread.start()

  def upload(self) -> None:
    """Uploads the files that have changed.

    Raises:
      OSError: A file cannot be uploaded.
    """
    with self._lock:
      versions = self._versions()
      changed = [n for n, v in versions.items() if self._uploaded.get(n) != v]
      with futures.ThreadPoolExecutor(_THREADS) as pool:
        for name in pool.map(self._upload_file, changed):
          if name in versions:
            # The version before the upload: later bytes are uploaded again.
            self._uploaded[name] = versions[name]
      for name in self._uploaded.keys() - versions.keys():
        if self._is_primary:
          (self.source / name).unlink(missing_ok=True)
        del self._uploaded[name]

  def try_upload(self) -> bool:
    """Uploads like `upload`; returns whether it succeeded, else warns."""
    try:
      self.upload()
    except OSError as e:
      side_files.report_unwritable(self.source, e)
      return False
    return True

  def close(self) -> None:
    """Uploads and removes the copy, which remains if it cannot be uploaded."""
    self._is_closed.set()
    is_uploaded = True
    if self._thread:
      self._thread.join()
      is_uploaded = self.try_upload()
    _open_copies.pop(self.path, None)
    if is_uploaded:
      self._folder.close()
    else:
      logging.warning(
        'The logs and summaries of %s remain in %s',
        self.source,
        self._folder.keep(),
      )

  def _remote_names(self) -> list[str]:
    """Returns the files that may be read back, without listing checkpoints."""
    try:
      children = list(self.source.iterdir())
    except FileNotFoundError:
      return []
    names = []
    for child in children:
      if child.name in _NOT_DOWNLOADED or child.name.endswith(_OUTPUTS_SUFFIX):
        continue
      below = child.files()
      names += [f'{child.name}/{name}' for name in below] or [child.name]
    return names

  def _upload_file(self, name: str) -> str | None:
    try:
      (self.source / name).upload(self.path / name)
    except FileNotFoundError:
      return None  # The file was renamed meanwhile.
    return name

  def _versions(self) -> dict[str, _Version]:
    versions = {}
    for name in storage.files(self.path):
      if not name.endswith(_NOT_UPLOADED):
        try:
          status = (self.path / name).stat()
        except FileNotFoundError:
          continue
        versions[name] = status.st_mtime_ns, status.st_size
    return versions

  def _upload_at_intervals(self, upload_secs: float) -> None:
    while not self._is_closed.wait(upload_secs):
      self.try_upload()


def origin(path: storage.PathLike) -> storage.Path:
  """Returns the place in the bucket of a file in a working copy.

  Other paths and URLs are returned as paths.
  """
  resolved = storage.to_path(path)
  copy = _copy_of(resolved)
  return copy.source / resolved.relative_to(copy.path) if copy else resolved


def upload(path: storage.PathLike) -> None:
  """Uploads the working copy that has this file, if there is one.

  Raises:
    OSError: A file cannot be uploaded.
  """
  if copy := _copy_of(storage.to_path(path)):
    copy.upload()


def _copy_of(path: storage.Path) -> WorkingCopy | None:
  folders = (path, *path.parents) if isinstance(path, pathlib.Path) else ()
  return next(filter(None, map(_open_copies.get, folders)), None)
