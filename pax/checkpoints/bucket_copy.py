# SPDX-License-Identifier: Apache-2.0
"""Local copies of checkpoints in buckets, which a restore reads.

Each object is downloaded once: checksums and TensorStore read the local file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator

from pax import storage, temporary_folders
from pax.checkpoints import tensorstore_format
from pax.checkpoints.types import CheckpointError, CorruptCheckpointError

# A chunk of an array of zarr.
_CHUNK = re.compile(r'\d+(\.\d+)*')


class BucketCopy:
  """The files of a checkpoint; the data of leaves are downloaded on demand.

  The copy is removed with this object.
  """

  def __init__(self, source: storage.BucketPath):
    """Downloads all files but the data of leaves.

    Args:
      source: The folder of the checkpoint.

    Raises:
      CheckpointError: The bucket cannot be read.
    """
    self._source = source
    self._folder = temporary_folders.TemporaryFolder('restore')
    self.path = self._folder.path / source.name
    self._data: set[str] = set()
    with self.in_messages():
      names = source.files()
      self._data = {name for name in names if _is_data(name)}
      self._download(name for name in names if name not in self._data)
    for name in self._data:
      # Until it is downloaded its name can be checked.
      file = self.path / name
      file.parent.mkdir(parents=True, exist_ok=True)
      file.touch()

  def fetch(self, leaves: Collection[str] | None) -> None:
    """Downloads data that have not been downloaded yet.

    Args:
      leaves: Names of leaves; None is all. A file that has data of many leaves
        is downloaded for any of them.

    Raises:
      CheckpointError: The bucket cannot be read.
    """
    names = [name for name in self._data if _has_leaf(name, leaves)]
    with self.in_messages():
      self._download(names)
    self._data.difference_update(names)

  @contextlib.contextmanager
  def in_messages(self) -> Iterator[None]:
    """Replaces the copy by its source in the messages of errors.

    Raises:
      CorruptCheckpointError: As the block raises it, with the other path.
      CheckpointError: The same, or the bucket cannot be read.
    """
    try:
      yield
    except FileNotFoundError as e:
      raise CorruptCheckpointError(
        f'{self._named(e.filename)} is missing'
      ) from e
    except OSError as e:
      raise CheckpointError(
        f'{self._source} cannot be read: {self._named(e)}'
      ) from e
    except CheckpointError as e:
      raise type(e)(self._named(e)) from e

  def _named(self, text: object) -> str:
    return str(text).replace(str(self.path), str(self._source))

  def _download(self, names: Iterator[str] | Collection[str]) -> None:
    storage.download_tree(self._source, self.path, names)


def _is_data(name: str) -> bool:
  is_chunk = _CHUNK.fullmatch(name.rpartition('/')[2])
  return bool(is_chunk) or tensorstore_format.is_database_file(name)


def _has_leaf(name: str, leaves: Collection[str] | None) -> bool:
  if leaves is None or tensorstore_format.is_database_file(name):
    return True
  leaf = tensorstore_format.leaf_of(name)
  return leaf is None or leaf in leaves
