# SPDX-License-Identifier: Apache-2.0
"""Batches of rows from sources with random access.

Global batch i is a function of the seed and i. The number of hosts does not
change it: each host reads its part of the rows. The state is one integer.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from absl import logging
from jaxtyping import Int64

from pax.inputs.records import record_sources
from pax.inputs.rows import index_permutation, indexed, mixtures
from praxis import py_utils, value_domains

NestedMap = py_utils.NestedMap


class RowSource(record_sources.RecordSource[NestedMap], Protocol):
  """Rows: maps of arrays whose shapes and dtypes are equal in all rows."""

  def padding(self) -> NestedMap:
    """Returns a row without content, to fill the last batch."""

  def write(
    self,
    indices: Int64[np.ndarray, ' N'],
    batch: NestedMap,
    places: Int64[np.ndarray, ' N'],
  ) -> None:
    """Writes rows into a batch; override it where rows can be written at once.

    Args:
      indices: Indices of the rows.
      batch: Arrays of rows, not initialized.
      places: For each of `indices`, the row of the batch that it is written to.

    Raises:
      UnreadableRecordError: A record is corrupt; rows may be left unwritten.
    """
    for index, place in zip(indices.tolist(), places.tolist(), strict=True):
      row = self.read(index)
      for name, array in batch.items():
        array[place] = row[name]


class RowConcatenation(record_sources.Concatenation[NestedMap], RowSource):
  """The rows of several sources, one source after the other."""

  sources: tuple[RowSource, ...]

  def padding(self) -> NestedMap:
    return self.sources[0].padding()

  def write(
    self,
    indices: Int64[np.ndarray, ' N'],
    batch: NestedMap,
    places: Int64[np.ndarray, ' N'],
  ) -> None:
    numbers = np.searchsorted(self.ends, indices, side='right')
    for number in np.unique(numbers):
      source, is_in = self.sources[number], numbers == number
      first = self.ends[number] - len(source)
      source.write(indices[is_in] - first, batch, places[is_in])


class RowInput(indexed.IndexedInput, abc.ABC):
  """Batches of rows; subclasses define `sources`.

  Training draws from the sources in proportion to their weights, indefinitely;
  the rows of a source come in another random order each epoch. Evaluation
  reads the rows of all sources once, in order, or `max_batches` of them.
  `eval_sample_weights` is 0 for padding.
  """

  # Whether to repeat after the last row; None repeats in training.
  repeat: bool | None = None
  # Number of corrupt records that a process replaces by padding of weight 0;
  # one more is an error.
  max_corrupt_records: int = value_domains.field(0, ge=0)
  # Number of batches of an evaluation, whose rows are drawn once for all
  # evaluations; None evaluates all rows.
  max_batches: int | None = value_domains.field(None, ge=1)

  def __post_init__(self):
    super().__post_init__()
    if self.max_batches is not None and self.repeats:
      raise ValueError(
        f'max_batches of input {self.name!r} must be None where rows repeat,'
        f' got {self.max_batches}; set repeat=False, or leave it None'
      )
    self._check_end(self.repeats)
    # Corrupt records that this process has replaced.
    self.num_corrupt_records = 0

  @property
  @abc.abstractmethod
  def sources(self) -> Sequence[RowSource]:
    """The sources of the rows."""

  @property
  def source_weights(self) -> Mapping[int, Sequence[float]] | None:
    """Weights of all sources in training, by the row from which they hold.

    None weighs each source by its number of rows.
    """
    return None

  @property
  def num_examples(self) -> int:
    """Number of rows of all sources, or of those in `max_batches`."""
    if self.max_batches is None:
      return len(self._rows)
    num_rows = self.max_batches * self.get_global_batch_size(self)
    return min(num_rows, len(self._rows))

  @property
  def repeats(self) -> bool:
    return super().repeats if self.repeat is None else self.repeat

  def indices(self, positions: Int64[np.ndarray, ' N']) -> np.ndarray:
    if self.is_training and self._mixture is not None:
      return self._mixture.indices(positions)
    if self.num_examples < len(self._rows):
      return index_permutation.endless(positions, len(self._rows), self.seed)
    return super().indices(positions)

  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    del positions
    batch = self._empty_batch(len(indices))
    weights = np.ones(len(indices), np.float32)
    places = np.arange(len(indices))
    try:
      self._rows.write(indices, batch, places)
    except record_sources.UnreadableRecordError:
      for place, index in enumerate(indices.tolist()):
        weights[place] = self._write_or_pad(index, batch, place)
    batch.eval_sample_weights = weights
    return batch

  def padded(self, batch: NestedMap, num_rows: int) -> NestedMap:
    padding = self._empty_batch(num_rows)
    for name, row in self._rows.padding().items():
      padding[name][:] = row
    padding.eval_sample_weights = np.zeros(num_rows, np.float32)
    return NestedMap(
      {name: np.concatenate([batch[name], padding[name]]) for name in padding}
    )

  def _empty_batch(self, num_rows: int) -> NestedMap:
    return self._rows.padding().Transform(
      lambda x: np.empty((num_rows, *x.shape), x.dtype)
    )

  def _write_or_pad(self, index: int, batch: NestedMap, place: int) -> float:
    """Writes a row, or padding where it is corrupt; returns its weight."""
    try:
      self._rows.write(np.array([index]), batch, np.array([place]))
    except record_sources.UnreadableRecordError as e:
      self._count_corrupt(e)
      for name, row in self._rows.padding().items():
        batch[name][place] = row
      return 0.0
    return 1.0

  def _count_corrupt(self, error: record_sources.UnreadableRecordError) -> None:
    self.num_corrupt_records += 1
    if self.num_corrupt_records > self.max_corrupt_records:
      raise record_sources.UnreadableRecordError(
        f'{error}; it is corrupt record {self.num_corrupt_records} of input'
        f' {self.name!r}, which may replace {self.max_corrupt_records}: repair'
        ' the file, or increase MAX_CORRUPT_RECORDS'
      ) from error
    logging.warning(
      'Corrupt record %d of at most %d is replaced by padding: %s',
      self.num_corrupt_records,
      self.max_corrupt_records,
      error,
    )

  @functools.cached_property
  def _rows(self) -> RowConcatenation:
    rows = RowConcatenation(self.sources)
    if not len(rows):
      raise ValueError(
        f'the data of input {self.name!r} have no rows; add data, or shorten'
        ' the rows (MAX_SEQ_LEN)'
      )
    return rows

  @functools.cached_property
  def _mixture(self) -> mixtures.Mixture | None:
    if self.source_weights is None:
      return None
    sizes = [len(source) for source in self.sources]
    return mixtures.Mixture(sizes, self.source_weights, self.seed)
