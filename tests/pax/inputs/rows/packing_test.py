# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Packed rows hold each label once, and segments separate documents."""

from __future__ import annotations

import numpy as np
import pytest

from pax.inputs.rows import packing
from pax.inputs.tokens import token_corpus

BOS, EOS = 1000, 1001


def pack(documents, seq_len):
  corpus = token_corpus.corpus_of(
    [np.array(d, np.uint16) for d in documents], bos_id=BOS, eos_id=EOS
  )
  plan = packing.plan(corpus.lengths, seq_len)
  batch = packing.empty_batch(plan.num_rows, seq_len)
  packing.write_rows(batch, range(plan.num_rows), corpus, plan)
  return batch, corpus


def test_one_document_by_hand():
  batch, corpus = pack([[5, 6, 7, 8, 9]], seq_len=4)
  np.testing.assert_array_equal(batch.ids, [[BOS, 5, 6, 7], [8, 9, 0, 0]])
  np.testing.assert_array_equal(batch.labels, [[5, 6, 7, 8], [9, EOS, 0, 0]])
  np.testing.assert_array_equal(batch.segment_ids, [[1] * 4, [1, 1, 0, 0]])
  np.testing.assert_array_equal(batch.segment_pos, [[0, 1, 2, 3], [0, 1, 0, 0]])
  np.testing.assert_array_equal(batch.weights, [[1] * 4, [1, 1, 0, 0]])
  np.testing.assert_array_equal(batch.paddings, 1 - batch.weights)
  assert list(corpus.lengths) == [6]


def test_types():
  batch, _ = pack([[1]], seq_len=2)
  for name in ('ids', 'labels', 'segment_ids', 'segment_pos'):
    assert batch[name].dtype == np.int32
  assert batch.weights.dtype == batch.paddings.dtype == np.float32


def segments(batch):
  """The ids and labels of each segment of each row."""
  for row in range(len(batch.ids)):
    for segment in range(1, batch.segment_ids[row].max() + 1):
      here = batch.segment_ids[row] == segment
      yield batch.ids[row][here], batch.labels[row][here]


@pytest.mark.parametrize('seed', range(5))
def test_random_documents_come_back_whole(seed):
  rng = np.random.default_rng(seed)
  # Tokens name their document and their place in it.
  documents = [
    np.arange(n) + 40 * d for d, n in enumerate(rng.integers(0, 40, 20))
  ]
  batch, corpus = pack(documents, seq_len=16)
  assert batch.weights.sum() == corpus.lengths.sum()
  labels = np.concatenate([label for _, label in segments(batch)])
  expected = np.concatenate([*documents, [EOS] * len(documents)])
  np.testing.assert_array_equal(np.sort(labels), np.sort(expected))
  for ids, label in segments(batch):
    np.testing.assert_array_equal(ids[1:], label[:-1])
    tokens = np.concatenate([ids, label])
    assert len({t // 40 for t in tokens if t < BOS}) <= 1  # No leak.
    assert BOS not in label and EOS not in ids


def test_segments_lie_side_by_side_without_gaps():
  batch, _ = pack([[7] * 5, [8] * 3, [9] * 2], seq_len=16)
  np.testing.assert_array_equal(
    batch.segment_ids, [[1] * 6 + [2] * 4 + [3] * 3 + [0] * 3]
  )
  np.testing.assert_array_equal(
    batch.segment_pos[0], [*range(6), *range(4), *range(3), 0, 0, 0]
  )


def test_rows_are_full_where_they_can_be():
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, 300, 500)
  plan = packing.plan(lengths, seq_len=64)
  assert lengths.sum() / (plan.num_rows * 64) > 0.99
  assert plan.lengths.max() == 64
  assert plan.lengths.sum() == lengths.sum()


def test_packing_is_deterministic():
  first, second = (pack([[1] * 9, [2] * 5, [3] * 5], 8)[0] for _ in range(2))
  for name in first:
    np.testing.assert_array_equal(first[name], second[name])


def test_nothing_gives_no_rows():
  batch, corpus = pack([], seq_len=4)
  assert batch.ids.shape == (0, 4) and not corpus.lengths.size


def test_an_empty_document_is_bos_and_eos():
  batch, _ = pack([[]], seq_len=3)
  assert batch.ids[0, 0] == BOS and batch.labels[0, 0] == EOS
  assert batch.weights.sum() == 1


def test_one_per_row_cuts():
  plan = packing.one_per_row([3, 9], seq_len=4)
  assert plan.num_rows == 2 and list(plan.lengths) == [3, 4]


@pytest.mark.parametrize('dtype', [np.uint16, np.uint64])
def test_the_row_of_an_empty_document_is_padding(dtype):
  # The second and the last document have no tokens, the first only one.
  corpus = token_corpus.Corpus(
    tokens=np.array([BOS, BOS, 5, EOS], dtype),
    starts=np.array([0, 1, 1, 4, 4]),
  )
  plan = packing.one_per_row(corpus.lengths, seq_len=2)
  batch = packing.empty_batch(plan.num_rows, 2)
  packing.write_rows(batch, range(4), corpus, plan)
  np.testing.assert_array_equal(batch.ids, [[0, 0], [0, 0], [BOS, 5], [0, 0]])
  np.testing.assert_array_equal(batch.weights.sum(axis=1), [0, 0, 2, 0])


def test_seq_len_must_be_positive():
  with pytest.raises(ValueError, match='seq_len'):
    packing.plan([3], seq_len=0)
