# SPDX-License-Identifier: Apache-2.0
"""Packing of documents into rows of equal length.

A document of n tokens has the ids `[bos] t1 .. tn` and the labels
`t1 .. tn [eos]`. Documents longer than a row are split into pieces of a row's
length; the remainders share rows. csrc/host packs, and packing_reference where
that is not built; both have the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from pax.inputs.rows import batch_types, native, packing_reference
from pax.inputs.rows.packing_reference import BEST_FIT, FIRST_FIT
from pax.inputs.tokens import token_corpus
from praxis import py_utils

NestedMap = py_utils.NestedMap

# Best-fit places the longest piece first, each in the row with the least
# sufficient space; first-fit keeps the order of the documents, and uses the
# first row with sufficient space.
ALGORITHMS = (BEST_FIT, FIRST_FIT)
# Documents that are packed together: bounds the time and memory of packing.
BLOCK_SIZE = 1 << 16

_Integers: TypeAlias = Sequence[int] | np.ndarray

# Arrays of a batch, in the order of `packing_reference.write_rows`.
_FIELDS = (
  'ids',
  'labels',
  'segment_ids',
  'segment_pos',
  'paddings',
  'weights',
)
# Types of tokens that csrc/host reads.
_NATIVE_DTYPES = ('uint8', 'uint16', 'uint32', 'int32', 'int64')


class PackingPlan(NamedTuple):
  """Placement of the pieces of documents, sorted by row and column."""

  seq_len: int
  # Document of each piece, offset in it, length, and column in the row.
  documents: np.ndarray
  offsets: np.ndarray
  lengths: np.ndarray
  columns: np.ndarray
  # First piece of each row, and the number of pieces.
  row_starts: np.ndarray

  @property
  def num_rows(self) -> int:
    """Number of rows."""
    return len(self.row_starts) - 1


def plan(
  lengths: _Integers, seq_len: int, algorithm: str = BEST_FIT
) -> PackingPlan:
  """Packs documents of `lengths` labels into rows.

  Raises:
    ValueError: `seq_len` is not positive, or `algorithm` is unknown.
  """
  if algorithm not in ALGORITHMS:
    raise ValueError(
      f'algorithm must be one of {list(ALGORITHMS)}, got {algorithm!r}'
    )
  if seq_len < 1:
    raise ValueError(f'seq_len must be at least 1, got {seq_len}')
  lengths = np.asarray(lengths, np.int64)
  pack = packing_reference.pack if (ext := native.load()) is None else ext.pack
  arrays = pack(lengths, seq_len, algorithm, BLOCK_SIZE)
  return PackingPlan(seq_len, *arrays)


def one_per_row(lengths: _Integers, seq_len: int) -> PackingPlan:
  """Returns the plan of one document per row, truncated to `seq_len`.

  The row of a document without labels has no piece.
  """
  sizes = np.clip(np.asarray(lengths, np.int64), 0, seq_len)
  documents = np.flatnonzero(sizes)
  return PackingPlan(
    seq_len,
    documents=documents,
    offsets=np.zeros_like(documents),
    lengths=sizes[documents].astype(np.int32),
    columns=np.zeros(len(documents), np.int32),
    row_starts=np.concatenate([[0], np.cumsum(sizes > 0)]),
  )


def empty_batch(batch_size: int, seq_len: int) -> NestedMap:
  """Returns a LanguageModelBatch of padding; all weights are 0."""
  return _padding((batch_size, seq_len))


def empty_row(seq_len: int) -> NestedMap:
  """Returns a row of a LanguageModelBatch, padding; all weights are 0."""
  return _padding((seq_len,))


def _padding(shape: tuple[int, ...]) -> NestedMap:
  ints = {
    name: np.zeros(shape, np.int32)
    for name in ('ids', 'labels', 'segment_ids', 'segment_pos')
  }
  return NestedMap(
    paddings=np.ones(shape, np.float32),
    weights=np.zeros(shape, np.float32),
    **ints,
  )


def write_rows(
  batch: batch_types.LanguageModelBatch,
  rows: _Integers,
  corpus: token_corpus.Corpus,
  plan: PackingPlan,
  places: _Integers | None = None,
) -> None:
  """Writes rows of the packed corpus into a batch.

  Args:
    batch: Arrays of shape [B, T]; they are modified.
    rows: Indices of rows of the plan.
    corpus: The documents.
    plan: The placement of their pieces.
    places: For each of `rows`, the row of the batch that it is written to;
      by default the first ones.
  """
  write = packing_reference.write_rows
  if (ext := native.load()) and corpus.tokens.dtype in _NATIVE_DTYPES:
    write = ext.write_rows
  write(
    corpus.tokens,
    corpus.starts,
    plan[1:],
    np.asarray(rows),
    np.arange(len(rows)) if places is None else np.asarray(places),
    tuple(getattr(batch, name) for name in _FIELDS),
  )
