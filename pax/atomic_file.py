# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import contextlib
import os
import pathlib
import uuid
from collections.abc import Iterator
from typing import BinaryIO

PathLike = str | os.PathLike[str]


class AtomicFile:
  """A binary file under a temporary name; `commit` renames it to `path`."""

  def __init__(self, path: PathLike):
    """Creates the folder of `path` and opens a temporary file in it."""
    self._path = pathlib.Path(path)
    self._path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes, perhaps of several hosts, may write the same path.
    suffix = f'{uuid.uuid4().hex[:12]}.part'
    self._part = self._path.with_name(f'{self._path.name}.{suffix}')
    self.file: BinaryIO = self._part.open('wb')

  def commit(self) -> None:
    """Closes the file and replaces `path` by it."""
    self.file.close()
    self._part.replace(self._path)

  def discard(self) -> None:
    """Closes and deletes the file; `path` stays unchanged."""
    self.file.close()
    self._part.unlink()


@contextlib.contextmanager
def open_atomic(path: PathLike) -> Iterator[BinaryIO]:
  """Opens a binary file that replaces `path` at the end of the `with` block.

  An exception in the block leaves `path` unchanged.
  """
  file = AtomicFile(path)
  try:
    yield file.file
  except BaseException:
    file.discard()
    raise
  file.commit()


def write_text(path: PathLike, text: str) -> None:
  """Replaces `path` by a UTF-8 file of `text`."""
  with open_atomic(path) as file:
    file.write(text.encode())
