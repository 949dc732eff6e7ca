# SPDX-License-Identifier: Apache-2.0
"""Inputs of language models: synthetic data, BERT records, lines of text."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Mapping, Sequence

import numpy as np

from pax.inputs.rows import packing
from pax.inputs.tokens import token_corpus, tokenizers
from pax.tasks.lm.bert_input import TFRecordBertInput as TFRecordBertInput
from pax.tasks.lm.masking import (
  make_masked_ml_data_augmenter as make_masked_ml_data_augmenter,
)
from praxis import base_input, pax_fiddle, py_utils, pytypes

NestedMap = py_utils.NestedMap


class SyntheticLmData(base_input.BaseInput):
  """A constant batch: every token is 1, and each row is one segment.

  It measures the speed of training without the cost of an input pipeline.
  """

  # Positions per row.
  seq_len: int = 0

  def __post_init__(self):
    super().__post_init__()
    if self.seq_len < 1:
      raise ValueError(f'seq_len must be at least 1, got {self.seq_len}')

  def get_next(self) -> NestedMap:
    batch_size = self.get_batch_size(self)
    shape = (batch_size, self.seq_len)
    ones = np.ones(shape, np.int32)
    positions = np.arange(self.seq_len, dtype=np.int32)
    return NestedMap(
      ids=ones,
      labels=ones,
      segment_ids=ones,
      segment_pos=np.tile(positions, (batch_size, 1)),
      weights=np.ones(shape, np.float32),
      paddings=np.zeros(shape, np.float32),
      eval_sample_weights=np.ones(batch_size, np.float32),
    )

  def reset(self) -> None:
    """Does nothing: the input has no state."""

  def _get_state_internal(self) -> base_input.State:
    return {}

  def _set_state_internal(self, state: base_input.State) -> None:
    del state


class TextInput(base_input.BaseInput):
  """The lines of a text file, one per row, truncated; one epoch.

  Consecutive batches belong to consecutive hosts. Padding rows of the last
  batches have weight 0 in `weights` and in `eval_sample_weights`.
  """

  # Path of the file.
  input_file: str | None = None
  tokenizer: tokenizers.Tokenizer = pax_fiddle.instance_field(
    tokenizers.ByteTokenizer
  )
  # Positions per row.
  max_sequence_length: int = 512
  # Number of lines to read; 0 is all.
  num_samples: int = 0
  # Whether each line is a Python literal of bytes, b'...', which may contain
  # line breaks; else it is plain text.
  bytes_repr: bool = True

  def __post_init__(self):
    super().__post_init__()
    self._examples = 0
    if not self.input_file or not os.path.isfile(self.input_file):
      raise ValueError(
        f'input_file of {self.name!r} must be the path of a text file, got '
        f'{self.input_file!r}'
      )
    if self.num_samples < 0:
      raise ValueError(
        f'num_samples of {self.name!r} must be at least 0, which is all lines,'
        f' got {self.num_samples}'
      )
    self._path = self.input_file

  @property
  def tokenizer_inst(self) -> tokenizers.Tokenizer:
    """The tokenizer."""
    return self.tokenizer

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Raises:
      StopIteration: All lines were read.
    """
    if self._examples >= self._plan.num_rows:
      raise StopIteration
    batch_size = self.get_batch_size(self)
    first = self._examples + self.infeed_host_index * batch_size
    self._examples += self.get_global_batch_size(self)
    rows = range(first, min(first + batch_size, self._plan.num_rows))
    batch = packing.empty_batch(batch_size, self.max_sequence_length)
    batch.eval_sample_weights = np.zeros(batch_size, np.float32)
    batch.eval_sample_weights[: len(rows)] = 1
    packing.write_rows(batch, rows, self._corpus, self._plan)
    return batch

  def reset(self) -> None:
    super().reset()
    self._examples = 0

  @property
  def computed_num_samples(self) -> int:
    """Number of lines that are read."""
    return self._plan.num_rows

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    del key
    # Reading the corpus fits the tokenizer.
    _ = self._corpus
    return tokenizers.decode_rows(self.tokenizer, ids, lengths)

  def vocabularies(self) -> Mapping[str, base_input.Vocabulary]:
    """Returns the vocabulary of `tokens`, by training the tokenizer."""
    if not self.tokenizer.is_fitted:
      _ = self._corpus
    return tokenizers.vocabularies(self.tokenizer)

  @functools.cached_property
  def _corpus(self) -> token_corpus.Corpus:
    with open(self._path, 'rb') as f:
      lines = f.read().splitlines()[: self.num_samples or None]
    if not lines:
      raise ValueError(
        f'input_file must have lines, {self.input_file} is empty'
      )
    if self.bytes_repr:
      lines = [self._eval_bytes(line) for line in lines]
    self.tokenizer.fit(lines)
    return token_corpus.corpus_of(
      [self.tokenizer.encode(line) for line in lines],
      bos_id=self.tokenizer.bos_id,
      eos_id=self.tokenizer.eos_id,
    )

  def _eval_bytes(self, line: bytes) -> bytes:
    """Returns the value of a bytes literal."""
    try:
      value = ast.literal_eval(line.decode())
    # A long line of operators exceeds the limits of Python's parser.
    except (MemoryError, RecursionError, SyntaxError, ValueError):
      value = None
    if not isinstance(value, bytes):
      raise ValueError(
        f"a line of {self.input_file} must be a literal b'...' with "
        f'bytes_repr=True, got {line[:40]!r}; set bytes_repr=False for plain '
        'text'
      )
    return value

  @functools.cached_property
  def _plan(self) -> packing.PackingPlan:
    return packing.one_per_row(self._corpus.lengths, self.max_sequence_length)

  def _get_state_internal(self) -> base_input.State:
    return {'examples': self._examples}

  def _set_state_internal(self, state: base_input.State) -> None:
    self._examples = int(state['examples'])
