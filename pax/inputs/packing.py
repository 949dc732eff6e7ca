# SPDX-License-Identifier: Apache-2.0
"""Best-fit packing of documents into rows of equal length.

A document of n tokens has the ids `[bos] t1 .. tn` and the labels
`t1 .. tn [eos]`. Documents longer than a row are split into pieces of a row's
length; the remainders share rows, longest first, each in the row with the least
sufficient space (best-fit decreasing).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from pax.inputs import batch_types
from praxis import py_utils

NestedMap = py_utils.NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
  """Concatenated tokens of documents, each between bos and eos."""

  # Document i is `tokens[starts[i]:starts[i + 1]]`.
  tokens: np.ndarray
  # Start of each document, and the end of the last.
  starts: np.ndarray

  @property
  def lengths(self) -> np.ndarray:
    """Number of labels of each document."""
    return np.diff(self.starts) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingPlan:
  """Placement of the pieces of documents, sorted by row and column."""

  seq_len: int
  num_rows: int
  # Of each piece: document, offset in it, length, and column in the row.
  documents: np.ndarray
  offsets: np.ndarray
  lengths: np.ndarray
  columns: np.ndarray
  # First piece of each row, and the number of pieces.
  row_starts: np.ndarray


def corpus_of(
  documents: Sequence[np.ndarray], *, bos_id: int, eos_id: int
) -> Corpus:
  """Returns the corpus of documents given as token ids."""
  lengths = [len(document) + 2 for document in documents]
  starts = np.cumsum([0, *lengths])
  largest = max([bos_id, eos_id, *(d.max(initial=0) for d in documents)])
  tokens = np.empty(starts[-1], np.min_scalar_type(largest))
  tokens[starts[:-1]], tokens[starts[1:] - 1] = bos_id, eos_id
  for start, document in zip(starts, documents, strict=False):
    tokens[start + 1 : start + 1 + len(document)] = document
  return Corpus(tokens=tokens, starts=starts)


def plan(lengths: Sequence[int], seq_len: int) -> PackingPlan:
  """Packs documents of `lengths` labels into rows.

  Raises:
    ValueError: `seq_len` is not positive.
  """
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
  """Returns the plan of one document per row, truncated to `seq_len`."""
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


def empty_batch(
  batch_size: int, seq_len: int
) -> batch_types.LanguageModelBatch:
  """Returns a batch of padding; all weights are 0."""
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
  batch: batch_types.LanguageModelBatch,
  rows: Sequence[int],
  corpus: Corpus,
  plan: PackingPlan,
) -> batch_types.LanguageModelBatch:
  """Writes rows of the packed corpus into the first rows of a batch.

  Args:
    batch: An empty batch; it is modified.
    rows: Indices of rows of the plan.
    corpus: The documents.
    plan: The placement of their pieces.

  Returns:
    The batch.
  """
  for batch_row, row in enumerate(rows):
    first, end = plan.row_starts[row : row + 2]
    for segment_id, piece in enumerate(range(first, end), start=1):
      _write_piece(batch, batch_row, segment_id, piece, corpus, plan)
  return batch


def _write_piece(
  batch: batch_types.LanguageModelBatch,
  batch_row: int,
  segment_id: int,
  piece: int,
  corpus: Corpus,
  plan: PackingPlan,
) -> None:
  size, column = plan.lengths[piece], plan.columns[piece]
  start = corpus.starts[plan.documents[piece]] + plan.offsets[piece]
  tokens = corpus.tokens[start : start + size + 1]
  index = (batch_row, slice(column, column + size))
  batch.ids[index] = tokens[:-1]
  batch.labels[index] = tokens[1:]
  batch.segment_ids[index] = segment_id
  batch.segment_pos[index] = np.arange(size)
  batch.paddings[index] = 0
  batch.weights[index] = 1


def _cut(
  lengths: np.ndarray, seq_len: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns document, offset and size of each piece of at most `seq_len`."""
  counts = -(-lengths // seq_len)
  documents = np.repeat(np.arange(len(lengths)), counts)
  first_pieces = np.repeat(np.cumsum(counts) - counts, counts)
  offsets = (np.arange(len(documents)) - first_pieces) * seq_len
  sizes = np.minimum(seq_len, lengths[documents] - offsets)
  return documents, offsets, sizes


def _best_fit(sizes: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns row and column of each piece, by best-fit decreasing."""
  is_full = sizes == seq_len
  rows = np.cumsum(is_full) - 1
  columns = np.zeros_like(rows)
  num_rows = int(is_full.sum())
  partial = np.flatnonzero(~is_full)
  gaps: list[tuple[int, int]] = []  # (free positions, row), sorted.
  for piece in partial[np.argsort(-sizes[partial], kind='stable')]:
    size = int(sizes[piece])
    tightest = bisect.bisect_left(gaps, (size, -1))
    if tightest < len(gaps):
      free, row = gaps.pop(tightest)
    else:
      free, row, num_rows = seq_len, num_rows, num_rows + 1
    rows[piece], columns[piece] = row, seq_len - free
    if free > size:
      bisect.insort(gaps, (free - size, row))
  return rows, columns
