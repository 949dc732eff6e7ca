# SPDX-License-Identifier: Apache-2.0
"""Inputs that language-model experiments name: synthetic, records, lines."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence

import numpy as np

from pax.inputs import packing, tokenizers
from pax.tasks.lm.bert_input import TFRecordBertInput as TFRecordBertInput
from praxis import base_input, pax_fiddle, py_utils, pytypes

NestedMap = py_utils.NestedMap


class SyntheticLmData(base_input.BaseInput):
  """The same batch for ever: every token is 1, one full segment per row.

  It takes no time to make, so what a run does with it is the model's own speed.
  """

  # Positions per row.
  seq_len: int = 0

  def __post_init__(self):
    super().__post_init__()
    if self.seq_len < 1:
      raise ValueError(f'seq_len must be at least 1, got {self.seq_len}')

  def get_next(self) -> NestedMap:
    shape = (self.batch_size, self.seq_len)
    ones = np.ones(shape, np.int32)
    return NestedMap(
      ids=ones,
      labels=ones,
      paddings=np.zeros(shape, np.float32),
      weights=np.ones(shape, np.float32),
      segment_ids=ones,
      segment_pos=np.tile(
        np.arange(self.seq_len, dtype=np.int32), shape[:1] + (1,)
      ),
    )

  def reset(self) -> None:
    pass

  def _get_state_internal(self) -> base_input.State:
    return {}

  def _set_state_internal(self, state: base_input.State) -> None:
    del state


class TextInput(base_input.BaseInput):
  """The lines of a text file, one to a row, cut to a length; ends with them.

  Hosts take rows in turn. Rows that fill up the last batch have weight 0, in
  `weights` and in `eval_sample_weights`.
  """

  # The file.
  input_file: str | None = None
  # Makes ids of text.
  tokenizer: tokenizers.Tokenizer = pax_fiddle.instance_field(
    tokenizers.ByteTokenizer
  )
  # Positions per row.
  max_sequence_length: int = 512
  # How many lines to read; 0 is all.
  num_samples: int = 0
  # Whether a line is written as Python writes bytes, b'...', so that it may
  # hold any of them, line ends too; else it is the text itself.
  bytes_repr: bool = True

  def __post_init__(self):
    super().__post_init__()
    self._examples = 0
    if not self.input_file:
      raise ValueError('input_file of TextInput is not set')

  def get_next(self) -> NestedMap:
    if self._examples >= self._plan.num_rows:
      raise StopIteration
    first = self._examples + self.infeed_host_index * self.batch_size
    self._examples += self.batch_size * self.num_infeed_hosts
    rows = range(first, min(first + self.batch_size, self._plan.num_rows))
    batch = packing.empty_batch(self.batch_size, self.max_sequence_length)
    batch.eval_sample_weights = np.zeros(self.batch_size, np.float32)
    batch.eval_sample_weights[: len(rows)] = 1
    return packing.fill(batch, rows, self._corpus, self._plan)

  def reset(self) -> None:
    self._set_state_internal({'examples': 0})

  def computed_num_samples(self) -> int:
    """How many lines there are to read."""
    return self._plan.num_rows

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    del key
    decode = self._corpus and self.tokenizer.decode
    pairs = zip(np.asarray(ids), np.asarray(lengths), strict=True)
    return [decode(row[:length]) for row, length in pairs]

  @functools.cached_property
  def _corpus(self) -> packing.Corpus:
    with open(self.input_file, 'rb') as f:
      lines = f.read().splitlines()[: self.num_samples or None]
    if self.bytes_repr:
      lines = [self._bytes_of(line) for line in lines]
    self.tokenizer.fit(lines)
    return packing.corpus_of(
      [self.tokenizer.encode(line) for line in lines],
      bos_id=self.tokenizer.bos_id,
      eos_id=self.tokenizer.eos_id,
    )

  def _bytes_of(self, line: bytes) -> bytes:
    """Returns the bytes that a line spells."""
    try:
      found = ast.literal_eval(line.decode())
    except (SyntaxError, ValueError):
      found = None
    if not isinstance(found, bytes):
      raise ValueError(
        f"a line of {self.input_file} must be as b'...' with bytes_repr=True, "
        f'got {line[:40]!r}; set bytes_repr=False for lines of text'
      )
    return found

  @functools.cached_property
  def _plan(self) -> packing.PackingPlan:
    return packing.one_per_row(self._corpus.lengths, self.max_sequence_length)

  def _get_state_internal(self) -> base_input.State:
    return {'examples': self._examples}

  def _set_state_internal(self, state: base_input.State) -> None:
    self._examples = int(state['examples'])
