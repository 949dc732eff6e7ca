# SPDX-License-Identifier: Apache-2.0
"""Sources and targets for encoder-decoders, such as pairs of texts."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from pax.inputs.records import text_files
from pax.inputs.text import text_corpus
from praxis import py_utils, value_domains

NestedMap = py_utils.NestedMap


class EncoderDecoderInput(text_corpus.TextCorpusInput):
  """Base of inputs with one source and one target per row.

  The tokens of both end with eos, and longer ones are truncated. The decoder
  reads the target after `start_id`, without its last token.
  """

  # Tokens of a row.
  source_len: int = value_domains.field(512, ge=1)
  target_len: int = value_domains.field(128, ge=1)
  # First id of the decoder.
  start_id: int = 0

  @property
  def row_settings(self) -> Mapping[str, Any]:
    return {'source_len': self.source_len, 'target_len': self.target_len}

  def batch_of(
    self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
  ) -> NestedMap:
    """Returns the rows of tokens of sources and targets."""
    source_ids, source_paddings = self._rows(
      [source for source, _ in pairs], self.source_len
    )
    labels, target_paddings = self._rows(
      [target for _, target in pairs], self.target_len
    )
    ids = np.roll(labels, 1, axis=1)
    ids[:, 0] = self.start_id
    return NestedMap(
      src=NestedMap(ids=source_ids, paddings=source_paddings),
      tgt=NestedMap(
        ids=ids,
        paddings=target_paddings,
        labels=labels,
        weights=1 - target_paddings,
      ),
    )

  def _rows(
    self, sequences: Sequence[np.ndarray], length: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and paddings, [N, length]."""
    ids = np.zeros((len(sequences), length), np.int32)
    paddings = np.ones((len(sequences), length), np.float32)
    for i, sequence in enumerate(sequences):
      tokens = sequence[: length - 1]
      ids[i, : len(tokens)] = tokens
      ids[i, len(tokens)] = self.tokenizer.eos_id
      paddings[i, : len(tokens) + 1] = 0.0
    return ids, paddings


class TextPairInput(EncoderDecoderInput):
  """Pairs of texts from files of JSON objects, one per line."""

  # Fields of the texts in an object; an object without target has an empty one.
  source_field: str = 'input'
  target_field: str = 'target'

  @property
  def row_settings(self) -> Mapping[str, Any]:
    fields = {'fields': [self.source_field, self.target_field]}
    return {**super().row_settings, **fields}

  @property
  def num_examples(self) -> int:
    return len(self._pairs)

  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    del positions
    encode = self.tokenizer.encode
    return self.batch_of(
      [
        (encode(source.encode()), encode(target.encode()))
        for source, target in (self._pairs[i] for i in indices)
      ]
    )

  @functools.cached_property
  def _pairs(self) -> list[tuple[str, str]]:
    pairs = list(self._read_pairs())
    if not pairs:
      raise self.empty_error()
    return pairs

  def _read_pairs(self) -> Iterator[tuple[str, str]]:
    for path in self.paths:
      for place, value in text_files.json_lines(path):
        fields = value if isinstance(value, dict) else {}
        source = fields.get(self.source_field)
        target = fields.get(self.target_field, '')
        if not (isinstance(source, str) and isinstance(target, str)):
          raise ValueError(
            f'{place} must be an object with texts {self.source_field!r} and'
            f' {self.target_field!r}, got {str(value)[:80]}; set source_field'
            ' and target_field'
          )
        # Pairs with one source are on one side.
        is_held_out = text_files.is_held_out(
          source.encode(), self.held_out_percent
        )
        if is_held_out == self.held_out:
          yield source, target
