# SPDX-License-Identifier: Apache-2.0
"""Records of files in a random order, which fits into memory however many."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pax.inputs import text_files, tfrecord_files
from praxis import base_input

# `name@8` stands for name-00000-of-00008 and its siblings, `name@*` for any.
_SHARDED = re.compile(r'(.+)@(\d+|\*)([^@/]*)')


def expand(patterns: str | Sequence[str]) -> tuple[str, ...]:
  """Returns the files that patterns match; `name@8` means its eight shards.

  Raises:
    ValueError: a pattern matches no file.
  """
  if isinstance(patterns, str):
    patterns = [p for p in patterns.split(',') if p]
  return text_files.expand([_glob_of(p) for p in patterns])


class ShuffledRecords:
  """Takes the records of files for ever, each epoch in another order.

  Files come in a random order, and so do the records within each window of
  those that follow. The window is all that is held, and of a record only where
  it lies; where the window began and how many were taken since is the state.
  """

  def __init__(self, paths: Sequence[str], *, window: int, seed: int):
    """Begins with the first epoch.

    Args:
      paths: files of records.
      window: among how many records each is drawn.
      seed: chooses the order.

    Raises:
      ValueError: the window is empty.
    """
    if window < 1:
      raise ValueError(f'window must be at least 1, got {window}')
    self._paths, self._window, self._seed = tuple(paths), window, seed
    self._opened: tuple[str, tfrecord_files.RecordFiles] | None = None
    self.state = {'epoch': 0, 'file': 0, 'record': 0, 'taken': 0}

  @property
  def state(self) -> base_input.State:
    """Which record is next, as a dict that JSON can hold."""
    return {**self._begin, 'taken': self._taken}

  @state.setter
  def state(self, state: base_input.State) -> None:
    self._begin = {k: int(state[k]) for k in ('epoch', 'file', 'record')}
    self._taken = int(state['taken'])
    self._order: list[tuple[tfrecord_files.RecordFiles, int]] | None = None

  def take(self) -> bytes:
    """Returns the next record.

    Raises:
      ValueError: the files have none.
    """
    if self._order is None:
      self._load()
    if self._taken == len(self._order):
      self._begin, self._taken = self._end, 0
      self._load()
    file, index = self._order[self._taken]
    self._taken += 1
    return file.read(index)

  def _load(self) -> None:
    """Finds the records of the window, and where the next one begins."""
    epoch, at, record = self._begin.values()
    chosen = np.random.default_rng([self._seed, epoch])
    paths = [self._paths[i] for i in chosen.permutation(len(self._paths))]
    found: list[tuple[tfrecord_files.RecordFiles, int]] = []
    while at < len(paths) and len(found) < self._window:
      file = self._open(paths[at])
      end = min(len(file), record + self._window - len(found))
      found += [(file, index) for index in range(record, end)]
      record = end
      if record == len(file):
        at, record = at + 1, 0
    if not found and not len(tfrecord_files.RecordFiles(paths)):
      raise ValueError(f'{paths} must have records, got none')
    order = np.random.default_rng([self._seed, *self._begin.values()])
    self._order = [found[i] for i in order.permutation(len(found))]
    if at == len(paths):
      epoch, at, record = epoch + 1, 0, 0
    self._end = {'epoch': epoch, 'file': at, 'record': record}

  def _open(self, path: str) -> tfrecord_files.RecordFiles:
    """Looks through a file; several windows may begin in one."""
    if self._opened is None or self._opened[0] != path:
      self._opened = (path, tfrecord_files.RecordFiles([path]))
    return self._opened[1]


def _glob_of(pattern: str) -> str:
  if not (found := _SHARDED.fullmatch(pattern)):
    return pattern
  name, shards, rest = found.groups()
  count = '?' * 5 if shards == '*' else f'{int(shards):05}'
  return f'{name}-?????-of-{count}{rest}'
