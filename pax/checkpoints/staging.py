# SPDX-License-Identifier: Apache-2.0
"""Where the processes write a checkpoint, and how it becomes visible.

A checkpoint on disk is written to a directory next to it, which all processes
share. Of one in a bucket each process writes its part to a temporary directory
and uploads it: Orbax cannot write to s3://, and checksums need not read the
bucket.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Collection, Iterator
from typing import Protocol

import jax

from pax.checkpoints import paths
from pax.files import storage, temporary_folders

Path = pathlib.Path


class Staging(Protocol):
  """The directory in which a process writes its part of a checkpoint."""

  # Local directory with the files that this process writes; after `prepare`.
  folder: Path
  # Where the layout moves the complete files; after `prepare`.
  local: Path
  # Directory with the files of the other processes, if it is another one.
  others: storage.Path | None

  def prepare(self) -> None:
    """Removes parts of an attempt that failed, before any process writes.

    Raises:
      OSError: They cannot be removed, or a directory cannot be made.
    """
    ...

  def create(self) -> None:
    """Makes the directory."""
    ...

  def share(self, files: Collection[str]) -> None:
    """Shows files of this process to the first one.

    Args:
      files: Paths below the checkpoint.
    """
    ...

  def publish(self) -> None:
    """Commits the files at `local`."""
    ...

  def discard(self, error: Exception) -> None:
    """Removes what was written before an error.

    Args:
      error: The error.
    """
    ...


class LocalStaging:
  """A directory next to the checkpoint, in which all processes write."""

  def __init__(self, final: Path):
    self.folder, self.local = paths.staging(final), final
    self.others: storage.Path | None = None

  def prepare(self) -> None:
    pass

  def create(self) -> None:
    count = jax.process_count()
    if count == 1 and self.folder.exists():
      # Files of an attempt that failed would be unexpected in the checkpoint.
      paths.discard(self.folder)
    self.folder.mkdir(exist_ok=count > 1)

  def share(self, files: Collection[str]) -> None:
    pass

  def publish(self) -> None:
    pass

  def discard(self, error: Exception) -> None:
    if jax.process_count() == 1 and isinstance(error, OSError):
      # Frees the disk, which may be full.
      paths.discard(self.folder)


class BucketStaging:
  """A temporary directory, whose files are uploaded under their final names.

  If the checkpoint is one object, which the first process uploads, the files of
  the others are in a folder next to it until then.
  """

  def __init__(self, final: storage.BucketPath, *, is_folder: bool):
    """Makes nothing yet: all processes have to learn of a failure.

    Args:
      final: Path of the checkpoint.
      is_folder: Whether the checkpoint is a folder, not one object.
    """
    self._final = final
    self._parts = final if is_folder else paths.staging(final)
    self._temporary: temporary_folders.TemporaryFolder | None = None
    self.others: storage.Path | None = (
      self._parts if jax.process_count() > 1 else None
    )
    self._shared: set[str] = set()
    # Whether nothing is committed under the name, and the objects are ours.
    self._is_owned = False

  def prepare(self) -> None:
    self._temporary = temporary_folders.TemporaryFolder('checkpoint')
    self.local = self._temporary.path / self._final.name
    self.folder = paths.staging(self.local)
    if jax.process_index() == 0:
      self._is_owned = True
      self._remove()

  def create(self) -> None:
    self.folder.mkdir()

  def share(self, files: Collection[str]) -> None:
    if jax.process_index() or self._parts == self._final:
      storage.upload_tree(self.folder, self._parts, files)
      self._shared.update(files)

  def publish(self) -> None:
    paths.publish(self.local, self._final, self._shared)
    self._is_owned = False
    if self._parts != self._final:
      paths.discard(self._parts)

  def discard(self, error: Exception) -> None:
    if self._is_owned:
      with contextlib.suppress(OSError):
        self._remove()

  def close(self) -> None:
    """Removes the temporary directory."""
    if self._temporary:
      self._temporary.close()

  def _remove(self) -> None:
    for path in {self._final, self._parts}:
      if path.exists():
        storage.remove_tree(path)


@contextlib.contextmanager
def open_staging(final: storage.Path, *, is_folder: bool) -> Iterator[Staging]:
  """Yields the staging of a checkpoint.

  Args:
    final: Path of the checkpoint.
    is_folder: Whether the checkpoint is a folder, not one file.
  """
  if isinstance(final, storage.BucketPath):
    with contextlib.closing(BucketStaging(final, is_folder=is_folder)) as place:
      yield place
  else:
    yield LocalStaging(final)
