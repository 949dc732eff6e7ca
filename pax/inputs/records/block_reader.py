# SPDX-License-Identifier: Apache-2.0
"""Rows that are built from blocks of records, read incrementally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from pax.inputs.records import shuffled_records
from praxis import base_input

Example = TypeVar('Example')
Row = TypeVar('Row')


class BlockReader(Generic[Example, Row]):
  """Turns blocks of records into rows, indefinitely.

  While the rows of a block are consumed, the records of the next block are read
  a few at a time, so that no batch waits for a whole block. The state is the
  position of the block and the number of consumed rows; restoring it rebuilds
  the block.
  """

  def __init__(
    self,
    records: shuffled_records.ShuffledRecords,
    read: Callable[[bytes, np.random.Generator], Example],
    rows_of: Callable[[list[Example], np.random.Generator], list[Row]],
    *,
    size: int,
    seeds: Sequence[int],
  ):
    """Starts at the current position of `records`.

    Args:
      records: The records.
      read: Parses a record.
      rows_of: Builds the rows of a block of examples, at least one row.
      size: Number of records in a block.
      seeds: Seeds of the generators passed to `read` and `rows_of`, combined
        with the position of the block.
    """
    self._records, self._read, self._rows_of = records, read, rows_of
    self._size, self._seeds = size, tuple(seeds)
    self.state = {'records': records.state, 'row': 0}

  @property
  def state(self) -> base_input.State:
    """The position of the next row, as a JSON-serializable dict."""
    if self._rows and self._next_row == len(self._rows):
      return {'records': self._next_block_start, 'row': 0}
    return {'records': self._block_start, 'row': self._next_row}

  @state.setter
  def state(self, state: base_input.State) -> None:
    self._rows: list[Row] = []
    self._block_start = dict(state['records'])
    self._next_row = int(state['row'])
    self._records.state = self._block_start
    self._start_block()

  def take(self, count: int) -> list[Row]:
    """Returns the next `count` rows."""
    rows: list[Row] = []
    while len(rows) < count:
      if self._next_row >= len(self._rows):
        self._build_block()
      end = self._next_row + count - len(rows)
      new_rows = self._rows[self._next_row : end]
      self._next_row += len(new_rows)
      rows += new_rows
    # Reads the share of the next block that completes it in time.
    self._read_records(-(-self._size * count // len(self._rows)))
    return rows

  def _start_block(self) -> None:
    self._next_block_start = self._records.state
    seeds = [*self._seeds, *self._next_block_start.values()]
    self._random = np.random.default_rng(seeds)
    self._examples: list[Example] = []

  def _read_records(self, count: int) -> None:
    for _ in range(min(count, self._size - len(self._examples))):
      record = self._records.take()
      try:
        example = self._read(record, self._random)
      except ValueError as e:
        raise ValueError(f'{self._records.last_record}: {e}') from e
      self._examples.append(example)

  def _build_block(self) -> None:
    self._read_records(self._size)
    if self._rows:
      self._next_row = 0
    self._block_start = self._next_block_start
    self._rows = self._rows_of(self._examples, self._random)
    self._start_block()
