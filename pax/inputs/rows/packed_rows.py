# SPDX-License-Identifier: Apache-2.0
"""Rows of language models, cut out of arrays of tokens."""

from __future__ import annotations

import abc
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64

from pax.inputs.rows import batch_types, packing, row_input
from pax.inputs.tokens import token_corpus
from praxis import py_utils

NestedMap = py_utils.NestedMap
# Size of an id in a batch.
_ID_BYTES = 4


class TokenRows(row_input.RowSource):
  """Rows of `seq_len` ids and labels; subclasses define `write_tokens`."""

  def __init__(self, seq_len: int, name: str, vocab_size: int | None):
    """Defines the form of the rows.

    Args:
      seq_len: Length of a row.
      name: File of the tokens, for messages.
      vocab_size: Upper bound of the ids, exclusive; None is not checked.
    """
    self._seq_len, self._name, self._vocab_size = seq_len, name, vocab_size

  @abc.abstractmethod
  def write_tokens(
    self,
    indices: Int64[np.ndarray, ' N'],
    batch: batch_types.LanguageModelBatch,
    places: Int64[np.ndarray, ' N'],
  ) -> None:
    """Writes rows into a batch, as `write`, which checks the ids."""

  def write(
    self,
    indices: Int64[np.ndarray, ' N'],
    batch: batch_types.LanguageModelBatch,
    places: Int64[np.ndarray, ' N'],
  ) -> None:
    self.write_tokens(indices, batch, places)
    if self._vocab_size is not None:
      self._check_ids(self._vocab_size, indices, batch, places)

  def read(self, index: int) -> NestedMap:
    """Returns a row, with the fields of a LanguageModelBatch."""
    batch = self.padding().Transform(lambda x: x[np.newaxis])
    self.write(np.array([index]), batch, np.array([0]))
    return batch.Transform(lambda x: x[0])

  def padding(self) -> NestedMap:
    return packing.empty_row(self._seq_len)

  def _check_width(self, index: int, tokens: Int[np.ndarray, ' T']) -> None:
    """Checks ids of 64 bits before those of a batch wrap around.

    Raises:
      ValueError: An id of a row has more than 32 bits.
    """
    if tokens.dtype.itemsize <= _ID_BYTES:
      return
    is_wide = tokens.astype(np.int32) != tokens
    if is_wide.any():
      raise ValueError(
        f'{self.where(index)} must have ids of 32 bits, got'
        f' {tokens[is_wide][0]}; write the tokens again'
      )

  def _check_ids(
    self,
    vocab_size: int,
    indices: Int64[np.ndarray, ' N'],
    batch: batch_types.LanguageModelBatch,
    places: Int64[np.ndarray, ' N'],
  ) -> None:
    """Checks all tokens of some rows of a batch.

    `labels` of a packed row lacks the first id of each segment, `ids` the last.

    Raises:
      ValueError: An id is not below `vocab_size`.
    """
    for array in (batch.ids, batch.labels):
      # Negative ids are large unsigned numbers.
      tokens = array.view(np.uint32)
      if len(places) != len(tokens):
        tokens = tokens[places]
      if tokens.size and tokens.max() >= vocab_size:
        largest = array[places].view(np.uint32).max(axis=1)
        row = np.flatnonzero(largest >= vocab_size)[0]
        token = largest[row].astype(np.int32)
        raise ValueError(
          f'{self.where(int(indices[row]))} must have ids below {vocab_size},'
          f' the vocabulary size of the model, got {token}; use'
          ' the tokenizer of the model, or set VOCAB_SIZE'
        )


class PackedRows(TokenRows):
  """Documents that are packed by a plan; each is a segment of its row."""

  def __init__(
    self,
    corpus: token_corpus.Corpus,
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
    super().__init__(plan.seq_len, name, vocab_size)
    self._corpus, self._plan = corpus, plan

  def __len__(self) -> int:
    return self._plan.num_rows

  def write_tokens(
    self,
    indices: Int64[np.ndarray, ' N'],
    batch: batch_types.LanguageModelBatch,
    places: Int64[np.ndarray, ' N'],
  ) -> None:
    if self._corpus.tokens.dtype.itemsize > _ID_BYTES:
      for index in indices.tolist():
        for tokens in self._pieces(index):
          self._check_width(index, tokens)
    packing.write_rows(batch, indices, self._corpus, self._plan, places)

  def where(self, index: int) -> str:
    first, end = self._plan.row_starts[index : index + 2]
    documents = self._plan.documents[first:end].tolist()
    return f'documents {documents} of {self._name}'

  def _pieces(self, index: int) -> Iterator[np.ndarray]:
    """Yields the tokens of the pieces of a row."""
    of_row = slice(*self._plan.row_starts[index : index + 2])
    starts = self._corpus.starts[self._plan.documents[of_row]]
    starts = starts + self._plan.offsets[of_row]
    for start, size in zip(starts, self._plan.lengths[of_row], strict=True):
      # The last token is only a label.
      yield self._corpus.tokens[start : start + size + 1]


class ContiguousRows(TokenRows):
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
    super().__init__(seq_len, name, vocab_size)
    # Slices of `np.memmap` are slow.
    self._tokens, self._eos_id = np.asarray(tokens), eos_id

  def __len__(self) -> int:
    return max(0, len(self._tokens) - 1) // self._seq_len

  def write_tokens(
    self,
    indices: Int64[np.ndarray, ' N'],
    batch: batch_types.LanguageModelBatch,
    places: Int64[np.ndarray, ' N'],
  ) -> None:
    length = self._seq_len
    for index, place in zip(indices.tolist(), places.tolist(), strict=True):
      tokens = self._tokens[index * length : (index + 1) * length + 1]
      self._check_width(index, tokens)
      batch.ids[place], batch.labels[place] = tokens[:-1], tokens[1:]
    batch.paddings[places] = 0
    if self._eos_id is None:
      batch.weights[places], batch.segment_ids[places] = 1, 1
      batch.segment_pos[places] = np.arange(length)
      return
    is_last = batch.ids[places] == self._eos_id
    batch.weights[places] = 1 - is_last.astype(np.float32)
    batch.segment_ids[places], batch.segment_pos[places] = _segments(is_last)

  def where(self, index: int) -> str:
    start = index * self._seq_len
    return f'tokens {start} to {start + self._seq_len} of {self._name}'


def _segments(
  is_last: Bool[np.ndarray, 'N T'],
) -> tuple[Int32[np.ndarray, 'N T'], Int32[np.ndarray, 'N T']]:
  """Returns segment ids and positions, given the ends of segments."""
  is_first = np.zeros(is_last.shape, np.int32)
  is_first[:, 1:] = is_last[:, :-1]
  positions = np.arange(is_last.shape[1], dtype=np.int32)
  firsts = np.maximum.accumulate(is_first * positions, axis=1)
  return 1 + np.cumsum(is_first, axis=1, dtype=np.int32), positions - firsts
