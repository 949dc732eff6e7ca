# SPDX-License-Identifier: Apache-2.0
"""Packed language-model batches from text files."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pax.inputs.records import text_files, text_records
from pax.inputs.rows import packed_rows, packing, row_input
from pax.inputs.text import text_corpus
from pax.inputs.tokens import token_corpus, tokenizers
from praxis import value_domains

_TEXT_FIELD = 'text'


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Text:
  """The training or the held-out text, tokenized and packed."""

  corpus: token_corpus.Corpus
  plan: packing.PackingPlan
  # Size of the text before tokenization.
  num_bytes: int


class TextLmInput(text_corpus.TextCorpusInput, row_input.RowInput):
  """Next-token prediction on the documents of text files.

  Files of records, such as JSON lines, have a document in a field of each. The
  text is tokenized and packed in memory on first use.
  """

  # Length of a row.
  seq_len: int = value_domains.field(256, ge=1)
  # Field with the text of a record.
  text_field: str = _TEXT_FIELD
  # Prompt that the model continues at the end of training; empty is none.
  sample_prompt: str = ''

  @property
  def row_settings(self) -> Mapping[str, Any]:
    settings = {'seq_len': self.seq_len}
    if self.text_field == _TEXT_FIELD:
      return settings
    return {**settings, 'text_field': self.text_field}

  @functools.cached_property
  def sources(self) -> Sequence[row_input.RowSource]:
    """The packed text."""
    text = self._text
    return [packed_rows.PackedRows(text.corpus, text.plan)]

  def strings_to_ids(self, strings: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each string as a prompt, after bos if there is one."""
    encode = self.fitted_tokenizer.encode_prompt
    return [encode(string.encode()) for string in strings]

  @property
  def fitted_tokenizer(self) -> tokenizers.Tokenizer:
    """The tokenizer, fitted to the training text."""
    if not self.tokenizer.is_fitted:
      self.tokenizer.fit(self._split()[0])
    return self.tokenizer

  def derived_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns `bits_per_byte`, derived from `avg_xent` in nats per label.

    Labels include eos, bytes are those of the text, so values are comparable
    between tokenizers.
    """
    if 'avg_xent' not in metrics:
      return {}
    bits_per_label = metrics['avg_xent'] / math.log(2)
    return {'bits_per_byte': bits_per_label * self.labels_per_byte}

  @property
  def labels_per_byte(self) -> float:
    """Ratio of labels to bytes of text."""
    return float(self._text.corpus.lengths.sum()) / self._text.num_bytes

  @functools.cached_property
  def _text(self) -> _Text:
    """The packed text; built on first use, because it may take seconds."""
    train, held_out = self._split()
    self.tokenizer.fit(train)
    documents = held_out if self.held_out else train
    if not documents:
      raise self.empty_error()
    corpus = token_corpus.corpus_of(
      [self.tokenizer.encode(d) for d in documents],
      bos_id=self.tokenizer.bos_id,
      eos_id=self.tokenizer.eos_id,
    )
    return _Text(
      corpus=corpus,
      plan=packing.plan(corpus.lengths, self.seq_len),
      num_bytes=sum(len(d) for d in documents),
    )

  def _split(self) -> tuple[list[bytes], list[bytes]]:
    """Returns (training documents, held-out documents)."""
    train: list[bytes] = []
    held_out: list[bytes] = []
    for document in text_records.documents(self.paths, self.text_field):
      is_held_out = text_files.is_held_out(document, self.held_out_percent)
      (held_out if is_held_out else train).append(document)
    return train, held_out
