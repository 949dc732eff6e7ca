# SPDX-License-Identifier: Apache-2.0
"""Random access to the records of TFRecord files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent import futures

import numpy as np

from pax.files import tf_records
from pax.inputs.records import record_sources

# Files indexed in parallel; on network storage each read has a high latency.
_MAX_THREADS = 64


class RecordFiles:
  """Records of several files, indexed in the order of the files.

  Construction reads the length of every record; `read` verifies checksums.
  """

  def __init__(self, paths: Sequence[str]):
    """Finds the offsets of all records.

    Raises:
      ValueError: a file is not a TFRecord file, or is truncated.
    """
    self._paths = tuple(paths)
    with futures.ThreadPoolExecutor(_MAX_THREADS) as pool:
      self._offsets = list(pool.map(_read_offsets, self._paths))
    self._ends = np.cumsum([len(offsets) for offsets in self._offsets])

  def __len__(self) -> int:
    return int(self._ends[-1]) if len(self._ends) else 0

  def read(self, index: int) -> bytes:
    """Returns a record.

    Raises:
      UnreadableRecordError: The record is damaged.
    """
    file, record = self._find(index)
    start, size = self._offsets[file][record].tolist()
    with open(self._paths[file], 'rb', buffering=0) as f:
      content = os.pread(f.fileno(), size + 4, start)
    data, checksum = content[:size], content[size:]
    if not tf_records.is_intact(data, checksum):
      raise record_sources.UnreadableRecordError(
        f'{self.where(index)} is damaged: its checksum differs'
      )
    return data

  def where(self, index: int) -> str:
    """Returns the file of a record and its index there, for messages."""
    file, record = self._find(index)
    return f'record {record} of {self._paths[file]}'

  def _find(self, index: int) -> tuple[int, int]:
    """Returns the index of a record's file, and its index in that file."""
    file = int(np.searchsorted(self._ends, index, 'right'))
    return file, index - int(self._ends[file]) + len(self._offsets[file])


def damage_at(path: str, position: int) -> str:
  """Returns the name of a damaged record and what is wrong, '' if nothing is.

  Args:
    path: A TFRecord file.
    position: The byte at which the record begins, or its data.
  """
  try:
    offsets = _read_offsets(path)
  except ValueError as e:
    return str(e)
  is_there = (offsets[:, 0] == position) | (offsets[:, 0] == position + 12)
  for index in np.flatnonzero(is_there):
    start, size = offsets[index].tolist()
    with open(path, 'rb', buffering=0) as f:
      content = os.pread(f.fileno(), size + 4, start)
    if not tf_records.is_intact(content[:size], content[size:]):
      return f'record {index} of {path} is damaged: its checksum differs'
  return ''


def _read_offsets(path: str) -> np.ndarray:
  # A buffer would read the data between the lengths.
  with open(path, 'rb', buffering=0) as f:
    return tf_records.offsets(f)
