# SPDX-License-Identifier: Apache-2.0
"""Records of many TFRecord files, read one by one by their number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent import futures

import numpy as np

from pax import tf_records

# Files that are looked through at once: on network storage each read waits.
_MAX_THREADS = 64


class RecordFiles:
  """The records of files, numbered through in the order of the files.

  To open them reads the length of each record. What is read later is not held
  against its checksum, which in Python takes longer than to decode an image.
  """

  def __init__(self, paths: Sequence[str]):
    """Looks where the records are.

    Raises:
      ValueError: a file is no file of records, or is cut short.
    """
    self._paths = tuple(paths)
    with futures.ThreadPoolExecutor(_MAX_THREADS) as pool:
      self._places = list(pool.map(_offsets, self._paths))
    self._ends = np.cumsum([len(places) for places in self._places])

  def __len__(self) -> int:
    return int(self._ends[-1]) if len(self._ends) else 0

  def read(self, index: int) -> bytes:
    """Returns a record."""
    file, place = self._find(index)
    start, size = self._places[file][place]
    with open(self._paths[file], 'rb', buffering=0) as f:
      return os.pread(f.fileno(), int(size), int(start))

  def where(self, index: int) -> str:
    """Returns a description of where a record is, for messages."""
    file, place = self._find(index)
    return f'record {place} of {self._paths[file]}'

  def _find(self, index: int) -> tuple[int, int]:
    """The number of a record's file, and its own in there."""
    file = int(np.searchsorted(self._ends, index, 'right'))
    return file, index - int(self._ends[file]) + len(self._places[file])


def _offsets(path: str) -> np.ndarray:
  # A buffer would read what lies between the lengths.
  with open(path, 'rb', buffering=0) as f:
    return tf_records.offsets(f)
