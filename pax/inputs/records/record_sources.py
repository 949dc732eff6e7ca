# SPDX-License-Identifier: Apache-2.0
"""Random access to records: the contract of every source of data.

A source has a length and reads record i. Packing and tokenization turn a source
into another one; `row_input.RowInput` shuffles, mixes and batches sources and
divides batches among hosts.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Protocol, TypeVar

Record_co = TypeVar('Record_co', covariant=True)


class UnreadableRecordError(ValueError):
  """A record is corrupt; the message names the file and the record."""


class RecordSource(Protocol[Record_co]):
  """Records that are read by index."""

  def __len__(self) -> int:
    """Returns the number of records."""

  def read(self, index: int) -> Record_co:
    """Returns a record.

    Raises:
      UnreadableRecordError: The record is corrupt.
    """

  def where(self, index: int) -> str:
    """Returns the file of a record and its index there, for messages."""


class Concatenation(RecordSource[Record_co]):
  """The records of several sources, one source after the other."""

  def __init__(self, sources: Sequence[RecordSource[Record_co]]):
    self.sources = tuple(sources)
    # Number of records up to the end of each source.
    self.ends = list(itertools.accumulate(map(len, self.sources)))

  def __len__(self) -> int:
    return self.ends[-1] if self.ends else 0

  def read(self, index: int) -> Record_co:
    source, local_index = self._find(index)
    return source.read(local_index)

  def where(self, index: int) -> str:
    source, local_index = self._find(index)
    return source.where(local_index)

  def _find(self, index: int) -> tuple[RecordSource[Record_co], int]:
    """Returns the source of a record, and its index there."""
    if not 0 <= index < len(self):
      raise IndexError(f'index must be below {len(self)}, got {index}')
    number = bisect.bisect_right(self.ends, index)
    source = self.sources[number]
    return source, index - self.ends[number] + len(source)
