# SPDX-License-Identifier: Apache-2.0
"""Packed language-model batches from text files."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from pax.inputs import (
  batch_types,
  index_permutation,
  packing,
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


class TextLmInput(base_input.BaseInput):
  """Next-token prediction on the documents of text files.

  Training repeats indefinitely, in a new random order of rows each epoch.
  Evaluation reads each row once, in order, and pads the last batch with rows of
  weight 0. The state is the number of rows that all hosts have read together;
  the next rows are a function of it, so a run resumes at any batch, on any
  number of hosts.
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
  # Whether to repeat after the last row; None repeats in training.
  repeat: bool | None = None
  # Prompt that the model continues at the end of training; empty is none.
  sample_prompt: str = ''

  def __post_init__(self):
    super().__post_init__()
    self._examples = 0
    self._paths = text_files.expand(self.files)

  def get_next(self) -> batch_types.LanguageModelBatch:
    """Returns the next batch.

    Raises:
      StopIteration: the epoch has ended, without `repeat`.
    """
    text = self._text
    first = self._examples + self.infeed_host_index * self.batch_size
    if not self._repeats and self._examples >= text.plan.num_rows:
      raise StopIteration
    self._examples += self.batch_size * self.num_infeed_hosts
    positions = np.arange(first, first + self.batch_size)
    if not self._repeats:
      positions = positions[positions < text.plan.num_rows]
    batch = packing.empty_batch(self.batch_size, self.seq_len)
    return packing.fill(batch, self._rows_at(positions), text.corpus, text.plan)

  def reset(self) -> None:
    self.set_state({'examples': 0})

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
  ) -> Sequence[str]:
    del key
    pairs = zip(np.asarray(ids), np.asarray(lengths), strict=True)
    decode = self._fitted_tokenizer.decode
    return [decode(row[:length]) for row, length in pairs]

  def strings_to_ids(self, strings: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each string after a bos, as in training."""
    tokenizer = self._fitted_tokenizer
    bos = [tokenizer.bos_id]
    return [
      np.concatenate([bos, tokenizer.encode(s.encode())]) for s in strings
    ]

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

  @property
  def num_batches(self) -> int:
    """Batches per epoch; the last is padded, or continues in the next epoch."""
    global_batch = self.batch_size * self.num_infeed_hosts
    return -(-self._text.plan.num_rows // global_batch)

  @property
  def _repeats(self) -> bool:
    return self.is_training if self.repeat is None else self.repeat

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
    return self._text and self.tokenizer

  def _rows_at(self, positions: np.ndarray) -> np.ndarray:
    """Returns the rows at positions of the infinite sequence of rows."""
    num_rows = self._text.plan.num_rows
    if not self.is_training:
      return positions % num_rows
    return index_permutation.endless(
      positions, num_rows, self.input_random_seed or 0
    )

  def _get_state_internal(self) -> base_input.State:
    return {'examples': self._examples}

  def _set_state_internal(self, state: base_input.State) -> None:
    self._examples = int(state['examples'])


def _split(
  paths: Sequence[str], percent: float
) -> tuple[list[bytes], list[bytes]]:
  """Returns (training documents, held-out documents)."""
  train, held_out = [], []
  for document in text_files.documents(paths):
    is_held_out = text_files.is_held_out(document, percent)
    (held_out if is_held_out else train).append(document)
  return train, held_out
