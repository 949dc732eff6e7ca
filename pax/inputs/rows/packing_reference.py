# SPDX-License-Identifier: Apache-2.0
"""Packing of documents in Python: the reference of csrc/host/packing.h."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

BEST_FIT, FIRST_FIT = 'best_fit', 'first_fit'


def pack(
  lengths: np.ndarray, seq_len: int, fit: str, block_size: int
) -> tuple[np.ndarray, ...]:
  """Cuts documents into pieces of at most `seq_len` labels, and places them.

  Args:
    lengths: Number of labels of each document.
    seq_len: Length of a row.
    fit: Best-fit or first-fit.
    block_size: Number of documents that are packed together.

  Returns:
    Document, offset in it, length and column of each piece, sorted by row and
    column; and the first piece of each row, and the number of pieces.
  """
  place = _best_fit if fit == BEST_FIT else _first_fit
  blocks, starts, num_pieces = [], [np.zeros(0, np.int64)], 0
  for first in range(0, max(1, len(lengths)), block_size):
    block = np.maximum(lengths[first : first + block_size], 0)
    documents, offsets, sizes = _cut(block, seq_len)
    rows, columns = place(sizes, seq_len)
    order = np.lexsort((columns, rows))
    num_rows = int(rows.max()) + 1 if len(rows) else 0
    row_starts = np.searchsorted(rows[order], np.arange(num_rows))
    blocks.append(
      (
        documents[order] + first,
        offsets[order],
        sizes[order].astype(np.int32),
        columns[order].astype(np.int32),
      )
    )
    starts.append(row_starts + num_pieces)
    num_pieces += len(rows)
  return (
    *(np.concatenate(arrays) for arrays in zip(*blocks, strict=True)),
    np.concatenate([*starts, [num_pieces]]),
  )


def write_rows(
  tokens: np.ndarray,
  starts: np.ndarray,
  plan: Sequence[np.ndarray],
  rows: np.ndarray,
  places: np.ndarray,
  batch: Sequence[np.ndarray],
) -> None:
  """Writes rows: ids, the next token as label, segments from 1, and padding.

  Args:
    tokens: Concatenated tokens of all documents.
    starts: Start of each document in `tokens`, and the end of the last.
    plan: The arrays that `pack` returns.
    rows: Indices of rows of the plan.
    places: For each of them, the row of the batch that it is written to.
    batch: The arrays ids, labels, segment_ids, segment_pos, paddings and
      weights, of shape [B, T].
  """
  *pieces, row_starts = plan
  for row, place in zip(rows, places, strict=True):
    of_row = slice(*row_starts[row : row + 2])
    arrays = [array[place] for array in batch]
    _write_row(tokens, starts, [array[of_row] for array in pieces], arrays)


def _write_row(
  tokens: np.ndarray,
  starts: np.ndarray,
  pieces: Sequence[np.ndarray],
  row: Sequence[np.ndarray],
) -> None:
  ids, labels, segment_ids, segment_pos, paddings, weights = row
  for array in row:
    array[:] = array is paddings
  for segment_id, piece in enumerate(zip(*pieces, strict=True), start=1):
    document, offset, size, column = map(int, piece)
    start = int(starts[document]) + offset
    place = slice(column, column + size)
    ids[place] = tokens[start : start + size]
    labels[place] = tokens[start + 1 : start + size + 1]
    segment_ids[place], segment_pos[place] = segment_id, np.arange(size)
    paddings[place], weights[place] = 0, 1


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


def _first_fit(
  sizes: np.ndarray, seq_len: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns row and column of each piece, by first-fit."""
  rows, columns = np.zeros_like(sizes), np.zeros_like(sizes)
  free: list[int] = []
  for piece, size in enumerate(sizes.tolist()):
    row = next((r for r, f in enumerate(free) if f >= size), len(free))
    if row == len(free):
      free.append(seq_len)
    rows[piece], columns[piece] = row, seq_len - free[row]
    free[row] -= size
  return rows, columns
