# SPDX-License-Identifier: Apache-2.0
"""Packed language-model batches from text files."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from pax.inputs import index_permutation, packing, text_files, tokenizers
from praxis import base_input, pax_fiddle, py_utils, pytypes

NestedMap = py_utils.NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Text:
  """One side of the split, tokenised and packed."""

  corpus: packing.Corpus
  plan: packing.PackingPlan
  # Of the text itself.
  num_bytes: int


class TextLmInput(base_input.BaseInput):
  """Next-token prediction on the documents of text files.

  Training goes through all rows in a new random order each epoch, for ever;
  evaluation goes through them once, in order, and ends with rows of weight 0
  where the last batch is not full. Which row comes next is computed from how
  many were read, by all hosts together: that number is the whole state, so a
  run resumes at any batch, on any number of hosts.
  """

  # Paths, globs or folders; a string may hold several, with commas between.
  # None: the source files of the Python standard library.
  files: str | Sequence[str] | None = None
  # Makes ids of text.
  tokenizer: tokenizers.Tokenizer = pax_fiddle.instance_field(
    tokenizers.ByteTokenizer
  )
  # Positions per row.
  seq_len: int = 256
  # How much of the text is kept from training, and whether this reads that.
  held_out_percent: float = 2.0
  held_out: bool = False
  # Whether to begin again after the last row. None: when training.
  repeat: bool | None = None
  # At the end of training the model continues this text, if there is any.
  sample_prompt: str = ''

  def __post_init__(self):
    super().__post_init__()
    self._examples = 0
    self._paths = text_files.expand(self.files)

  def get_next(self) -> NestedMap:
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
    return [self._fitted.decode(row[:length]) for row, length in pairs]

  def strings_to_ids(self, strings: Sequence[str]) -> list[np.ndarray]:
    """The ids of each string behind a bos, as the model reads a document."""
    bos = [self._fitted.bos_id]
    return [
      np.concatenate([bos, self._fitted.encode(s.encode())]) for s in strings
    ]

  def derived_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """`bits_per_byte`, from `avg_xent` in nats per label.

    All labels are counted, the end of each document too; bytes are those of
    the text. So the figure does not depend on the tokenizer.
    """
    if 'avg_xent' not in metrics:
      return {}
    bits_per_label = metrics['avg_xent'] / math.log(2)
    return {'bits_per_byte': bits_per_label * self.labels_per_byte}

  @property
  def labels_per_byte(self) -> float:
    """Labels in one epoch for each byte of its text."""
    return float(self._text.corpus.lengths.sum()) / self._text.num_bytes

  @property
  def num_batches(self) -> int:
    """Batches in one epoch; the last may be padded, or run into the next."""
    global_batch = self.batch_size * self.num_infeed_hosts
    return -(-self._text.plan.num_rows // global_batch)

  @property
  def _repeats(self) -> bool:
    return self.is_training if self.repeat is None else self.repeat

  @functools.cached_property
  def _text(self) -> _Text:
    """The text this reads; made on first use, since that may take seconds."""
    train, held_out = _split(self._paths, self.held_out_percent)
    self.tokenizer.fit(train)
    documents = held_out if self.held_out else train
    if not documents:
      part = 'held-out' if self.held_out else 'training'
      raise ValueError(
        f'{len(self._paths)} files have no {part} text at held_out_percent='
        f'{self.held_out_percent}; give more files or another share'
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
  def _fitted(self) -> tokenizers.Tokenizer:
    return self._text and self.tokenizer

  def _rows_at(self, positions: np.ndarray) -> np.ndarray:
    """The rows at `positions` of the endless order of this input."""
    total = self._text.plan.num_rows
    if not self.is_training:
      return positions % total
    return index_permutation.endless(
      positions, total, self.input_random_seed or 0
    )

  def _get_state_internal(self) -> base_input.State:
    return {'examples': self._examples}

  def _set_state_internal(self, state: base_input.State) -> None:
    self._examples = int(state['examples'])


def _split(
  paths: Sequence[str], percent: float
) -> tuple[list[bytes], list[bytes]]:
  """The documents to train on, and those held out."""
  both: tuple[list[bytes], list[bytes]] = ([], [])
  for document in text_files.documents(paths):
    both[text_files.is_held_out(document, percent)].append(document)
  return both
