# SPDX-License-Identifier: Apache-2.0
"""Span corruption of text files: the objective that T5 was trained with.

References: Raffel et al., arXiv:1910.10683, section 3.1.4.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int64

from pax.inputs.records import text_files, text_records
from pax.inputs.text import text_pairs
from pax.inputs.tokens import tokenizers
from praxis import py_utils, value_domains

NestedMap = py_utils.NestedMap

# Number of sentinels in the vocabularies of T5, and the first of them.
_NUM_SENTINELS = 100
_FIRST_SENTINEL = '<extra_id_0>'
# A window has a token in a span and one outside.
_MIN_TOKENS = 2


class SpanCorruptionInput(text_pairs.EncoderDecoderInput):
  """Predicts the spans of a text that are replaced by sentinels.

  A row is a window of the concatenated documents, each of which ends with eos.
  The source has a sentinel for each span, the target each sentinel before the
  tokens of its span; both end with eos. The spans are a function of the seed
  and of the position of the row in the infinite sequence of rows.
  """

  # Fraction of tokens in spans, and the mean number of tokens in a span.
  noise_density: float = value_domains.field(0.15, gt=0.0, lt=1.0)
  mean_span_len: float = value_domains.field(3.0, ge=1.0)

  @property
  def row_settings(self) -> Mapping[str, Any]:
    spans = {'spans': [self.noise_density, self.mean_span_len]}
    return {**super().row_settings, **spans}

  @property
  def num_examples(self) -> int:
    return max(1, len(self._tokens) // self.window_len)

  @functools.cached_property
  def window_len(self) -> int:
    """Number of tokens of a window, the most that fit into a row.

    Raises:
      ValueError: No window fits, or it has too many spans.
    """
    if not self._fits(_MIN_TOKENS):
      raise ValueError(
        'source_len and target_len must be at least 3, got'
        f' {self.source_len} and {self.target_len}'
      )
    length = _MIN_TOKENS
    while self._fits(length + 1):
      length += 1
    num_spans = self._num_noise_and_spans(length)[1]
    if num_spans > _NUM_SENTINELS:
      raise ValueError(
        f'a row must have at most {_NUM_SENTINELS} spans, got {num_spans} with'
        f' source_len={self.source_len}, target_len={self.target_len} and'
        f' mean_span_len={self.mean_span_len}; choose longer spans'
      )
    return length

  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    length = self.window_len
    pairs = [
      self._corrupt(self._tokens[i * length : (i + 1) * length], position)
      for i, position in zip(indices, positions, strict=True)
    ]
    return self.batch_of(pairs)

  @functools.cached_property
  def _tokens(self) -> Int[np.ndarray, ' T']:
    """The documents of this side of the split; read on first use."""
    eos = np.array([self.tokenizer.eos_id])
    parts = [
      part
      for document in text_records.documents(self.paths)
      if text_files.is_held_out(document, self.held_out_percent)
      == self.held_out
      for part in (self.tokenizer.encode(document), eos)
    ]
    if sum(map(len, parts)) < _MIN_TOKENS:
      raise self.empty_error()
    return np.concatenate(parts).astype(np.int32)

  def _corrupt(
    self, tokens: Int[np.ndarray, ' T'], position: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of source and target, without the eos at the end."""
    rng = np.random.default_rng([self.input_random_seed or 0, position])
    is_noise = self._noise(len(tokens), rng)
    sentinel = first_sentinel(self.tokenizer)
    return (
      _with_sentinels(tokens, is_noise, sentinel),
      _with_sentinels(tokens, ~is_noise, sentinel),
    )

  def _noise(
    self, length: int, rng: np.random.Generator
  ) -> Bool[np.ndarray, ' T']:
    """Returns whether each token is in a span; text and spans alternate."""
    num_noise, num_spans = self._num_noise_and_spans(length)
    lengths = np.stack(
      [
        _partition(length - num_noise, num_spans, rng),
        _partition(num_noise, num_spans, rng),
      ],
      axis=1,
    )
    return np.repeat(np.tile([False, True], num_spans), lengths.ravel())

  def _num_noise_and_spans(self, length: int) -> tuple[int, int]:
    num_noise = min(max(round(length * self.noise_density), 1), length - 1)
    num_spans = max(round(num_noise / self.mean_span_len), 1)
    return num_noise, min(num_spans, length - num_noise)

  def _fits(self, length: int) -> bool:
    num_noise, num_spans = self._num_noise_and_spans(length)
    return (
      length - num_noise + num_spans + 1 <= self.source_len
      and num_noise + num_spans + 1 <= self.target_len
    )


def first_sentinel(tokenizer: tokenizers.Tokenizer) -> int:
  """Returns the id of the first sentinel; that of the next is smaller by 1.

  Without sentinels of its own a vocabulary has 100 after its end, as T5's.
  """
  sentinel = tokenizer.token_id(_FIRST_SENTINEL)
  if sentinel is None:
    return tokenizer.vocab_size + _NUM_SENTINELS - 1
  return sentinel


def _with_sentinels(
  tokens: Int[np.ndarray, ' T'], is_span: Bool[np.ndarray, ' T'], first: int
) -> Int[np.ndarray, ' S']:
  """Returns the tokens with a sentinel for each span, beginning at `first`."""
  starts = is_span & ~np.concatenate([[False], is_span[:-1]])
  result = np.where(starts, first + 1 - np.cumsum(starts), tokens)
  return result[starts | ~is_span]


def _partition(
  total: int, num_parts: int, rng: np.random.Generator
) -> Int64[np.ndarray, ' N']:
  """Returns random positive sizes of parts with this sum."""
  cuts = rng.choice(total - 1, num_parts - 1, replace=False) + 1
  return np.diff(np.concatenate([[0], np.sort(cuts), [total]]))
