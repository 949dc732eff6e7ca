# SPDX-License-Identifier: Apache-2.0
"""Documents as one array of tokens, the form that packing and files have."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
  """Concatenated tokens of documents, each between bos and eos."""

  # Document i is `tokens[starts[i]:starts[i + 1]]`.
  tokens: np.ndarray
  # Start of each document, and the end of the last.
  starts: np.ndarray

  @property
  def lengths(self) -> np.ndarray:
    """Number of labels of each document."""
    return np.diff(self.starts) - 1


def corpus_of(
  documents: Sequence[np.ndarray], *, bos_id: int, eos_id: int
) -> Corpus:
  """Returns the corpus of documents given as token ids."""
  lengths = [len(document) + 2 for document in documents]
  starts = np.cumsum([0, *lengths])
  largest = max([bos_id, eos_id, *(d.max(initial=0) for d in documents)])
  tokens = np.empty(starts[-1], np.min_scalar_type(largest))
  tokens[starts[:-1]], tokens[starts[1:] - 1] = bos_id, eos_id
  for start, document in zip(starts, documents, strict=False):
    tokens[start + 1 : start + 1 + len(document)] = document
  return Corpus(tokens=tokens, starts=starts)
