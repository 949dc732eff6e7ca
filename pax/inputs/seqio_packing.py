# SPDX-License-Identifier: Apache-2.0
"""Next-fit packing of token sequences into rows, equal to that of SeqIO."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32


@dataclasses.dataclass(frozen=True)
class Row:
  """Concatenated sequences, padded with 0."""

  tokens: Int32[np.ndarray, 'T']
  # Index of the sequence in the row, from 1, and position in the sequence.
  segments: Int32[np.ndarray, 'T']
  positions: Int32[np.ndarray, 'T']

  def shifted(self, bos_id: int, packed: bool) -> Int32[np.ndarray, 'T']:
    """Returns the decoder inputs: tokens shifted right by one.

    Args:
      bos_id: First input of each sequence.
      packed: Whether the row may hold several sequences; the position after the
        last sequence is then `bos_id`, otherwise the last token.
    """
    inputs = np.append(np.int32(bos_id), self.tokens[:-1])
    if not packed:
      return inputs
    is_start = np.diff(self.segments, prepend=0) != 0
    return np.where(is_start, np.int32(bos_id), inputs)


def concatenate(sequences: Sequence[np.ndarray], length: int) -> Row:
  """Returns the row of `length` positions with these sequences."""
  tokens, segments, positions = np.zeros((3, length), np.int32)
  start = 0
  for segment, sequence in enumerate(sequences, start=1):
    end = start + len(sequence)
    tokens[start:end] = sequence
    segments[start:end] = segment
    positions[start:end] = np.arange(len(sequence))
    start = end
  return Row(tokens, segments, positions)


def next_fit(
  sizes: Sequence[Sequence[int]], limits: Sequence[int]
) -> list[list[int]]:
  """Returns the indices of the examples of each row, by next-fit packing.

  Args:
    sizes: Length of each feature of each example.
    limits: Maximum length of each feature in a row.
  """
  rows: list[list[int]] = [[]]
  lengths = np.zeros(len(limits), int)
  for index, size in enumerate(sizes):
    if (lengths + size > limits).any():
      rows.append([])
      lengths[:] = 0
    rows[-1].append(index)
    lengths += size
  return rows


def strip_padding(tokens: np.ndarray) -> np.ndarray:
  """Returns as many leading tokens as there are nonzero tokens."""
  return tokens[: np.count_nonzero(tokens)]
