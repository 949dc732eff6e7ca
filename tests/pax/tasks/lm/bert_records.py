# SPDX-License-Identifier: Apache-2.0
"""TFRecord files of documents in the format of MLPerf's BERT."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from pax.files import tf_records

CLS, SEP, MASK = 101, 102, 103
PREDICTIONS = 76


def record(
  tokens: Sequence[int],
  masked: Sequence[int],
  length: int,
  predictions: int = PREDICTIONS,
) -> bytes:
  """Returns a document of `tokens`, masked at the positions `masked`."""
  ids = np.zeros(length, np.int64)
  ids[: len(tokens)] = tokens
  hidden = ids.copy()
  hidden[list(masked)] = MASK
  pad = [0] * (predictions - len(masked))
  return tf_records.example(
    {
      'input_ids': hidden,
      'input_mask': np.arange(length) < len(tokens),
      'segment_ids': np.zeros(length, np.int64),
      'masked_lm_positions': np.array([*masked, *pad]),
      'masked_lm_ids': np.array([*ids[list(masked)], *pad]),
      'masked_lm_weights': np.array([1.0] * len(masked) + pad, np.float32),
      'next_sentence_labels': np.array([0]),
    }
  )


def write(path: pathlib.Path, records: Sequence[bytes]) -> str:
  with open(path, 'wb') as file:
    tf_records.write(file, records)
  return str(path)


def counting(count: int, length: int, seed: int) -> list[bytes]:
  """Documents of consecutive tokens, predictable from adjacent ones."""
  random = np.random.default_rng(seed)
  found = []
  for _ in range(count):
    size = int(random.integers(6, length))
    text = 200 + (random.integers(8) + np.arange(size)) % 8
    text[[0, size // 2, -1]] = CLS, SEP, SEP
    masked = 1 + random.choice(size // 2 - 1, 2, replace=False)
    found.append(record(text.tolist(), sorted(masked.tolist()), length))
  return found
