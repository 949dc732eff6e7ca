# SPDX-License-Identifier: Apache-2.0
"""Packs documents of any length into rows of one length, and shows the seams.

A document of n tokens is read as `[bos] t1 .. tn` and predicted as
`t1 .. tn [eos]`, each label once. What is longer than a row is cut into pieces
of a row's length; the remainders share rows, best fit first. `segment_ids`
tells the pieces of a row apart (from 1; 0 is padding), and `segment_pos` counts
from 0 within each.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from praxis import py_utils

NestedMap = py_utils.NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
  """Tokens of documents, one behind the other, each between bos and eos."""

  # Document i is `tokens[starts[i]:starts[i + 1]]`.
  tokens: np.ndarray
  # Where documents start, and the end of the last.
  starts: np.ndarray

  @property
  def lengths(self) -> np.ndarray:
    """How many labels each document has."""
    return np.diff(self.starts) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingPlan:
  """Which piece of which document goes where; sorted by row and column."""

  seq_len: int
  num_rows: int
  # For each piece: its document, where it starts there, its length, its column.
  documents: np.ndarray
  offsets: np.ndarray
  lengths: np.ndarray
  columns: np.ndarray
  # The first piece of each row, and the number of pieces.
  row_starts: np.ndarray


def corpus_of(
  documents: Sequence[np.ndarray], *, bos_id: int, eos_id: int
) -> Corpus:
  """The corpus made of the token ids of `documents`."""
  lengths = [len(document) + 2 for document in documents]
  starts = np.cumsum([0, *lengths])
  largest = max([bos_id, eos_id, *(d.max(initial=0) for d in documents)])
  tokens = np.empty(starts[-1], np.min_scalar_type(largest))
  tokens[starts[:-1]], tokens[starts[1:] - 1] = bos_id, eos_id
  for start, document in zip(starts, documents, strict=False):
    tokens[start + 1 : start + 1 + len(document)] = document
  return Corpus(tokens=tokens, starts=starts)


def plan(lengths: Sequence[int], seq_len: int) -> PackingPlan:
  """Packs pieces of documents with `lengths` positions into rows."""
  if seq_len < 1:
    raise ValueError(f'seq_len must be at least 1, got {seq_len}')
  documents, offsets, sizes = _cut(np.asarray(lengths, np.int64), seq_len)
  rows, columns = _best_fit(sizes, seq_len)
  order = np.lexsort((columns, rows))
  num_rows = int(rows.max()) + 1 if len(rows) else 0
  return PackingPlan(
    seq_len=seq_len,
    num_rows=num_rows,
    documents=documents[order],
    offsets=offsets[order],
    lengths=sizes[order],
    columns=columns[order],
    row_starts=np.searchsorted(rows[order], np.arange(num_rows + 1)),
  )


def one_per_row(lengths: Sequence[int], seq_len: int) -> PackingPlan:
  """Puts each document in a row of its own, cut to `seq_len`."""
  rows = np.arange(len(lengths))
  return PackingPlan(
    seq_len=seq_len,
    num_rows=len(rows),
    documents=rows,
    offsets=np.zeros_like(rows),
    lengths=np.minimum(np.asarray(lengths, np.int64), seq_len),
    columns=np.zeros_like(rows),
    row_starts=np.arange(len(rows) + 1),
  )


def empty_batch(batch_size: int, seq_len: int) -> NestedMap:
  """A batch of padding only: all weights are 0."""
  shape = (batch_size, seq_len)
  ints = {
    name: np.zeros(shape, np.int32)
    for name in ('ids', 'labels', 'segment_ids', 'segment_pos')
  }
  return NestedMap(
    paddings=np.ones(shape, np.float32),
    weights=np.zeros(shape, np.float32),
    **ints,
  )


def fill(
  batch: NestedMap, rows: Sequence[int], corpus: Corpus, packing: PackingPlan
) -> NestedMap:
  """Writes `rows` of the packed corpus into the first rows of `batch`."""
  for b, row in enumerate(rows):
    first, end = packing.row_starts[row : row + 2]
    for segment, piece in enumerate(range(first, end), start=1):
      _write(batch, b, segment, piece, corpus, packing)
  return batch


def _write(
  batch: NestedMap,
  b: int,
  segment: int,
  piece: int,
  corpus: Corpus,
  packing: PackingPlan,
) -> None:
  size, column = packing.lengths[piece], packing.columns[piece]
  start = corpus.starts[packing.documents[piece]] + packing.offsets[piece]
  window = corpus.tokens[start : start + size + 1]
  here = slice(column, column + size)
  batch.ids[b, here] = window[:-1]
  batch.labels[b, here] = window[1:]
  batch.segment_ids[b, here] = segment
  batch.segment_pos[b, here] = np.arange(size)
  batch.paddings[b, here] = 0
  batch.weights[b, here] = 1


def _cut(
  lengths: np.ndarray, seq_len: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Document, offset and size of each piece of at most `seq_len`."""
  counts = -(-lengths // seq_len)
  documents = np.repeat(np.arange(len(lengths)), counts)
  firsts = np.repeat(np.cumsum(counts) - counts, counts)
  offsets = (np.arange(len(documents)) - firsts) * seq_len
  sizes = np.minimum(seq_len, lengths[documents] - offsets)
  return documents, offsets, sizes


def _best_fit(sizes: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
  """Row and column of each piece: longest first, into the tightest gap."""
  full = sizes == seq_len
  rows = np.cumsum(full) - 1
  columns = np.zeros_like(rows)
  num_rows = int(full.sum())
  rest = np.flatnonzero(~full)
  gaps: list[tuple[int, int]] = []  # (free positions, row), sorted.
  for piece in rest[np.argsort(-sizes[rest], kind='stable')]:
    size = int(sizes[piece])
    at = bisect.bisect_left(gaps, (size, -1))
    if at < len(gaps):
      free, row = gaps.pop(at)
    else:
      free, row, num_rows = seq_len, num_rows, num_rows + 1
    rows[piece], columns[piece] = row, seq_len - free
    if free > size:
      bisect.insort(gaps, (free - size, row))
  return rows, columns
