# SPDX-License-Identifier: Apache-2.0
"""Local copy of the files of a checkpoint in a bucket that are not its data.

Checksums, JSON and TensorStore, which cannot read every kind of bucket, read
these files; threads read the data from the bucket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from pax.checkpoints.formats import tensorstore_format
from pax.checkpoints.types import CheckpointError
from pax.files import storage, temporary_folders


class MetadataCopy:
  """A copy of all files but the data; removed with this object."""

  def __init__(self, source: storage.BucketPath, files: Collection[str]):
    """Downloads each file once.

    Args:
      source: The folder of the checkpoint.
      files: Paths of its files below it.

    Raises:
      OSError: The bucket cannot be read.
    """
    self._source = source
    self._folder = temporary_folders.TemporaryFolder('restore')
    self.path = self._folder.path / source.name
    self.path.mkdir()
    data = tensorstore_format.data_files(files)
    storage.download_tree(source, self.path, set(files) - data)

  @contextlib.contextmanager
  def in_messages(self) -> Iterator[None]:
    """Replaces the copy by its source in the messages of errors.

    Raises:
      CheckpointError: As the block raises it, with the other path.
    """
    try:
      yield
    except CheckpointError as e:
      message = str(e).replace(str(self.path), str(self._source))
      raise type(e)(message) from e
