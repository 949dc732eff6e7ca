# SPDX-License-Identifier: Apache-2.0
"""Rows of language models, cut out of arrays of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pax.inputs import batch_types, packing, record_sources, row_input
from praxis import py_utils

NestedMap = py_utils.NestedMap


class PackedRows(row_input.RowSource):
  """Documents that are packed by a plan; each is a segment of its row."""

  def __init__(
    self,
    corpus: packing.Corpus,
    plan: packing.PackingPlan,
    *,
    name: str = 'memory',
    vocab_size: int | None = None,
  ):
    """Combines documents and plan.

    Args:
      corpus: The documents.
      plan: The placement of their pieces in rows.
      name: File of the tokens, for messages.
      vocab_size: Upper bound of the ids, exclusive; None is not checked.
    """
    self._corpus, self._plan = corpus, plan
    self._name, self._vocab_size = name, vocab_size

  def __len__(self) -> int:
    return self._plan.num_rows

  def read(self, index: int) -> batch_types.LanguageModelBatch:
    row = self.padding()
    packing.write_row(row, index, self._corpus, self._plan)
    _check_ids((row.ids, row.labels), self._vocab_size, self, index)
    return row

  def where(self, index: int) -> str:
    first, end = self._plan.row_starts[index : index + 2]
    documents = self._plan.documents[first:end].tolist()
    return f'documents {documents} of {self._name}'

  def padding(self) -> batch_types.LanguageModelBatch:
    return packing.empty_row(self._plan.seq_len)


class ContiguousRows(row_input.RowSource):
  """Consecutive tokens: row i starts at token i times the length of a row.

  Each token is the label of the previous one, also across rows. Rows begin and
  end anywhere in a document. The tokens after the last complete row are not
  read.
  """

  def __init__(
    self,
    tokens: np.ndarray,
    seq_len: int,
    *,
    eos_id: int | None = None,
    name: str = 'memory',
    vocab_size: int | None = None,
  ):
    """Divides tokens into rows.

    Args:
      tokens: Integers, one-dimensional; a memory-mapped array is not read.
      seq_len: Length of a row.
      eos_id: Last id of each document, after which a segment starts; the next
        id is no label of it. None: each row is one segment.
      name: File of the tokens, for messages.
      vocab_size: Upper bound of the ids, exclusive; None is not checked.
    """
    self._tokens, self._seq_len, self._eos_id = tokens, seq_len, eos_id
    self._name, self._vocab_size = name, vocab_size
    # Arrays of a row that is one segment; rows share them.
    self._constants = {
      'paddings': np.zeros(seq_len, np.float32),
      'weights': np.ones(seq_len, np.float32),
      'segment_ids': np.ones(seq_len, np.int32),
      'segment_pos': np.arange(seq_len, dtype=np.int32),
    }
    for array in self._constants.values():
      array.flags.writeable = False

  def __len__(self) -> int:
    return max(0, len(self._tokens) - 1) // self._seq_len

  def read(self, index: int) -> batch_types.LanguageModelBatch:
    length = self._seq_len
    start = index * length
    tokens = self._tokens[start : start + length + 1].astype(np.int32)
    _check_ids((tokens,), self._vocab_size, self, index)
    row = NestedMap(ids=tokens[:-1], labels=tokens[1:], **self._constants)
    if self._eos_id is not None:
      is_last = row.ids == self._eos_id
      row.segment_ids, row.segment_pos = self._segments(is_last)
      row.weights = 1 - is_last.astype(np.float32)
    return row

  def _segments(self, is_last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns segment ids and positions, given the ends of segments."""
    starts = np.flatnonzero(is_last[:-1]) + 1
    segment_ids = self._constants['segment_ids'].copy()
    segment_ids[starts] = np.arange(2, len(starts) + 2)
    np.maximum.accumulate(segment_ids, out=segment_ids)
    firsts = np.concatenate([[0], starts]).astype(np.int32)
    return segment_ids, self._constants['segment_pos'] - firsts[segment_ids - 1]

  def where(self, index: int) -> str:
    start = index * self._seq_len
    return f'tokens {start} to {start + self._seq_len} of {self._name}'

  def padding(self) -> batch_types.LanguageModelBatch:
    return packing.empty_row(self._seq_len)


def _check_ids(
  tokens: Sequence[np.ndarray],
  vocab_size: int | None,
  source: record_sources.RecordSource,
  index: int,
) -> None:
  """Checks all tokens of a row.

  `labels` of a packed row lacks the first id of each segment, `ids` the last.
  """
  if vocab_size is None:
    return
  # Negative ids are large unsigned numbers.
  largest = max(int(array.view(np.uint32).max()) for array in tokens)
  if largest >= vocab_size:
    raise ValueError(
      f'{source.where(index)} must have ids below {vocab_size}, the vocabulary'
      f' size of the model, got {np.uint32(largest).astype(np.int32)}; use the'
      ' tokenizer of the model, or set VOCAB_SIZE'
    )
