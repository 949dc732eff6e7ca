# SPDX-License-Identifier: Apache-2.0
"""Rows made of many records together, without a pause where the next begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pax.inputs import shuffled_records
from praxis import base_input

Example = Any
Row = Any


class BlockReader:
  """Makes blocks of records into rows, for ever.

  While the rows of one block are taken, the records of the next are read, a few
  with each batch. The state is where the block began and how many of its rows
  were taken: to go on from it the block is made again.
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
    """Begins where the records are.

    Args:
      records: where they come from.
      read: makes an example of a record.
      rows_of: makes rows of the examples of a block, one at least.
      size: records per block.
      seeds: choose, with the place of the block, what is random in both.
    """
    self._records, self._read, self._rows_of = records, read, rows_of
    self._size, self._seeds = size, tuple(seeds)
    self.state = {'records': records.state, 'row': 0}

  @property
  def state(self) -> base_input.State:
    """Which row is next, as a dict that JSON can hold."""
    if self._rows and self._row == len(self._rows):
      return {'records': self._next_begin, 'row': 0}
    return {'records': self._begin, 'row': self._row}

  @state.setter
  def state(self, state: base_input.State) -> None:
    self._rows: list[Row] = []
    self._begin, self._row = dict(state['records']), int(state['row'])
    self._records.state = self._begin
    self._start_reading()

  def take(self, count: int) -> list[Row]:
    """Returns the next rows."""
    taken: list[Row] = []
    while len(taken) < count:
      if self._row >= len(self._rows):
        self._next_block()
      rows = self._rows[self._row : self._row + count - len(taken)]
      self._row += len(rows)
      taken += rows
    # In time for the end of this block.
    self._read_some(-(-self._size * count // len(self._rows)))
    return taken

  def _start_reading(self) -> None:
    self._next_begin = self._records.state
    seeds = [*self._seeds, *self._next_begin.values()]
    self._random = np.random.default_rng(seeds)
    self._examples: list[Example] = []

  def _read_some(self, count: int) -> None:
    for _ in range(min(count, self._size - len(self._examples))):
      self._examples.append(self._read(self._records.take(), self._random))

  def _next_block(self) -> None:
    self._read_some(self._size)
    if self._rows:
      self._row = 0
    self._begin = self._next_begin
    self._rows = self._rows_of(self._examples, self._random)
    self._start_reading()
