# SPDX-License-Identifier: Apache-2.0
"""Packed language-model batches from text files."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from pax.inputs import (
  packed_rows,
  packing,
  row_input,
  text_files,
  tokenizers,
)
from praxis import base_input, pax_fiddle, pytypes, value_domains


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Text:
  """The training or the held-out text, tokenized and packed."""

  corpus: packing.Corpus
  plan: packing.PackingPlan
  # Size of the text before tokenization.
  num_bytes: int


class TextLmInput(row_input.RowInput):
  """Next-token prediction on the documents of text files.

  The text is tokenized and packed in memory on first use.
  """

  # Paths, globs or directories, in a sequence or separated by commas; None is
  # the source files of the Python standard library.
  files: str | Sequence[str] | None = None
  # Maps text to ids.
  tokenizer: tokenizers.Tokenizer = pax_fiddle.instance_field(
    tokenizers.ByteTokenizer
  )
  # Length of a row.
  seq_len: int = value_domains.field(256, ge=1)
  # Percentage of documents held out from training, and whether to read them.
  held_out_percent: float = 2.0
  held_out: bool = False
  # Prompt that the model continues at the end of training; empty is none.
  sample_prompt: str = ''

  def __post_init__(self):
    super().__post_init__()
    self._paths = text_files.expand(self.files)

  @functools.cached_property
  def sources(self) -> Sequence[row_input.RowSource]:
    """The packed text."""
    text = self._text
    return [packed_rows.PackedRows(text.corpus, text.plan)]

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    del key
    return tokenizers.decode_rows(self._fitted_tokenizer, ids, lengths)

  def strings_to_ids(self, strings: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each string as a prompt, after bos if there is one."""
    encode = self._fitted_tokenizer.encode_prompt
    return [encode(string.encode()) for string in strings]

  def vocabularies(self) -> Mapping[str, base_input.Vocabulary]:
    """Returns the vocabulary of `tokens`, by training the tokenizer."""
    if not self.tokenizer.is_fitted:
      self.tokenizer.fit(_split(self._paths, self.held_out_percent)[0])
    return tokenizers.vocabularies(self.tokenizer)

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
    train, held_out = _split(self._paths, self.held_out_percent)
    self.tokenizer.fit(train)
    documents = held_out if self.held_out else train
    if not documents:
      part = 'held-out' if self.held_out else 'training'
      raise ValueError(
        f'{len(self._paths)} files have no {part} text at held_out_percent='
        f'{self.held_out_percent}; add files or change held_out_percent'
      )
    corpus = packing.corpus_of(
      [self.tokenizer.encode(d) for d in documents],
      bos_id=self.tokenizer.bos_id,
      eos_id=self.tokenizer.eos_id,
    )
    return _Text(
      corpus=corpus,
      plan=packing.plan(corpus.lengths, self.seq_len),
      num_bytes=sum(len(d) for d in documents),
    )

  @property
  def _fitted_tokenizer(self) -> tokenizers.Tokenizer:
    self.vocabularies()
    return self.tokenizer


def _split(
  paths: Sequence[str], percent: float
) -> tuple[list[bytes], list[bytes]]:
  """Returns (training documents, held-out documents)."""
  train, held_out = [], []
  for document in text_files.documents(paths):
    is_held_out = text_files.is_held_out(document, percent)
    (held_out if is_held_out else train).append(document)
  return train, held_out
