# SPDX-License-Identifier: Apache-2.0
"""Shuffled records of files, in memory bounded by a shuffle window."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pax.inputs.records import text_files, tfrecord_files
from praxis import base_input

# `name@8` is name-00000-of-00008 to name-00007-of-00008, `name@*` any count.
_SHARDED = re.compile(r'(.+)@(\d+|\*)([^@/]*)')


def expand(patterns: str | Sequence[str]) -> tuple[str, ...]:
  """Returns the files that patterns match; `name@8` matches its 8 shards.

  Raises:
    ValueError: a pattern matches no file.
  """
  if isinstance(patterns, str):
    patterns = [p for p in patterns.split(',') if p]
  return text_files.expand([_glob_of(p) for p in patterns])


class ShuffledRecords:
  """Reads the records of files indefinitely, each epoch in another order.

  The order of files is random, and so is the order of records within each
  window of consecutive records. Memory holds the offsets of one window. The
  state is the start of the window and the number of records taken from it.
  """

  def __init__(self, paths: Sequence[str], *, window: int, seed: int):
    """Starts with the first epoch.

    Args:
      paths: TFRecord files.
      window: Number of records that are shuffled together.
      seed: Seed of the order.

    Raises:
      ValueError: the window is empty.
    """
    if window < 1:
      raise ValueError(f'window must be at least 1, got {window}')
    self._paths, self._window, self._seed = tuple(paths), window, seed
    self._opened: tuple[str, tfrecord_files.RecordFiles] | None = None
    self._last_record = ''
    self.state = {'epoch': 0, 'file': 0, 'record': 0, 'taken': 0}

  @property
  def state(self) -> base_input.State:
    """The position of the next record, as a JSON-serializable dict."""
    return {**self._window_start, 'taken': self._taken}

  @state.setter
  def state(self, state: base_input.State) -> None:
    self._window_start = {k: int(state[k]) for k in ('epoch', 'file', 'record')}
    self._taken = int(state['taken'])
    self._order: list[tuple[tfrecord_files.RecordFiles, int]] | None = None

  @property
  def last_record(self) -> str:
    """The file of the last record and its index there, for messages."""
    return self._last_record

  def take(self) -> bytes:
    """Returns the next record.

    Raises:
      ValueError: the files have no records.
    """
    if self._order is None:
      self._order = self._load_window()
    if self._taken == len(self._order):
      self._window_start, self._taken = self._next_window_start, 0
      self._order = self._load_window()
    file, index = self._order[self._taken]
    self._taken += 1
    self._last_record = file.where(index)
    return file.read(index)

  def _load_window(self) -> list[tuple[tfrecord_files.RecordFiles, int]]:
    """Returns the records of the window; sets the start of the next one."""
    epoch, file_index, record = self._window_start.values()
    file_order = np.random.default_rng([self._seed, epoch])
    paths = [self._paths[i] for i in file_order.permutation(len(self._paths))]
    records: list[tuple[tfrecord_files.RecordFiles, int]] = []
    while file_index < len(paths) and len(records) < self._window:
      file = self._open(paths[file_index])
      end = min(len(file), record + self._window - len(records))
      records += [(file, index) for index in range(record, end)]
      record = end
      if record == len(file):
        file_index, record = file_index + 1, 0
    if not records and not len(tfrecord_files.RecordFiles(paths)):
      raise ValueError(f'{paths} must have records, got none')
    order = np.random.default_rng([self._seed, *self._window_start.values()])
    if file_index == len(paths):
      epoch, file_index, record = epoch + 1, 0, 0
    self._next_window_start = {
      'epoch': epoch,
      'file': file_index,
      'record': record,
    }
    return [records[i] for i in order.permutation(len(records))]

  def _open(self, path: str) -> tfrecord_files.RecordFiles:
    """Returns the records of a file; consecutive windows share it."""
    if self._opened is None or self._opened[0] != path:
      self._opened = (path, tfrecord_files.RecordFiles([path]))
    return self._opened[1]


def _glob_of(pattern: str) -> str:
  if not (match := _SHARDED.fullmatch(pattern)):
    return pattern
  name, shards, suffix = match.groups()
  count = '?' * 5 if shards == '*' else f'{int(shards):05}'
  return f'{name}-?????-of-{count}{suffix}'
