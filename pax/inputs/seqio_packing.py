# SPDX-License-Identifier: Apache-2.0
"""Lays texts side by side in a row as SeqIO does, so that rows are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32


@dataclasses.dataclass(frozen=True)
class Row:
  """Texts side by side; what is left is 0."""

  tokens: Int32[np.ndarray, 'T']
  # Which text, from 1, and the place in it.
  segments: Int32[np.ndarray, 'T']
  positions: Int32[np.ndarray, 'T']

  def shifted(self, bos_id: int, packed: bool) -> Int32[np.ndarray, 'T']:
    """Returns what a decoder reads: each token after the one before it.

    Args:
      bos_id: what comes before a text.
      packed: whether there may be several texts; then the place behind the last
        has a `bos_id` too, and otherwise the last token.
    """
    before = np.append(np.int32(bos_id), self.tokens[:-1])
    if not packed:
      return before
    begins = np.diff(self.segments, prepend=0) != 0
    return np.where(begins, np.int32(bos_id), before)


def lay_out(texts: Sequence[np.ndarray], length: int) -> Row:
  """Returns a row of so many positions with these texts."""
  tokens, segments, positions = np.zeros((3, length), np.int32)
  at = 0
  for segment, text in enumerate(texts, start=1):
    here = slice(at, at + len(text))
    tokens[here] = text
    segments[here] = segment
    positions[here] = np.arange(len(text))
    at += len(text)
  return Row(tokens, segments, positions)


def next_fit(
  sizes: Sequence[Sequence[int]], limits: Sequence[int]
) -> list[list[int]]:
  """Returns which texts share a row: as long as the next one fits.

  Args:
    sizes: of each text, or of each of its features.
    limits: of a row, for each feature.
  """
  rows: list[list[int]] = [[]]
  filled = np.zeros(len(limits), int)
  for index, size in enumerate(sizes):
    if (filled + size > limits).any():
      rows.append([])
      filled[:] = 0
    rows[-1].append(index)
    filled += size
  return rows


def without_padding(tokens: np.ndarray) -> np.ndarray:
  """Returns as many tokens as are not 0."""
  return tokens[: np.count_nonzero(tokens)]
