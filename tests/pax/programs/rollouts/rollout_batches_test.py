# SPDX-License-Identifier: Apache-2.0
"""Rows and advantages of samples of a policy."""

from __future__ import annotations

import numpy as np
import pytest

from pax.programs.rollouts import rollout_batches


def test_rows_have_the_responses_as_labels():
  ids = np.array([[7, 8, 1, 2, 3, 0], [9, 4, 5, 6, 0, 0]], np.int32)
  samples = rollout_batches.Samples(
    ids=ids,
    prompt_lengths=np.array([2, 1]),
    lengths=np.array([5, 4]),
    prompt_index=np.array([3, 1]),
  )
  np.testing.assert_array_equal(samples.response_lengths, [3, 3])
  np.testing.assert_array_equal(
    samples.responses()[:, :3], [[1, 2, 3], [4, 5, 6]]
  )
  batch = rollout_batches.train_batch(
    samples, np.array([0.5, -1.0], np.float32)
  )
  learned = [batch.labels[i][batch.weights[i] == 1].tolist() for i in range(2)]
  assert learned == [[1, 2, 3], [4, 5, 6]]
  np.testing.assert_array_equal(batch.ids, ids)
  np.testing.assert_array_equal(
    batch.paddings, [[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1]]
  )
  np.testing.assert_array_equal(batch.segment_pos[0], [0, 1, 2, 3, 4, 0])
  np.testing.assert_array_equal(batch.advantages, [0.5, -1.0])


@pytest.mark.parametrize('normalizes', [False, True])
def test_advantages_compare_the_samples_of_a_prompt(normalizes):
  rewards = np.array([1, 0, 0, 1, 5, 5, 5, 5, 0, 3, 0, 1], np.float32)
  deviations = rollout_batches.deviations(rewards, 4)
  advantages = rollout_batches.advantages(
    rewards, 4, deviations if normalizes else None
  )
  expected = []
  for group in np.split(rewards.astype(np.float64), 3):
    centered = group - group.mean()
    deviation = np.sqrt(np.sum(centered**2) / 3)
    expected += list(centered / (deviation + 1e-4) if normalizes else centered)
  np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-6)


def test_rewards_fall_over_the_last_tokens():
  lengths = np.array([1, 6, 7, 9, 10])
  penalties = rollout_batches.length_penalties(lengths, 10, 4)
  np.testing.assert_array_equal(penalties, [0, 0, -0.25, -0.75, -1])
  assert penalties.dtype == np.float32
  penalties = rollout_batches.length_penalties(lengths, 10, 10)
  np.testing.assert_allclose(penalties, -lengths / 10)


def test_batches_of_a_rollout_are_adjacent_rows():
  samples = rollout_batches.Samples(
    ids=np.arange(24, dtype=np.int32).reshape(4, 6),
    prompt_lengths=np.array([1, 2, 3, 4]),
    lengths=np.array([5, 5, 5, 5]),
    prompt_index=np.array([7, 7, 8, 8]),
  )
  batch = rollout_batches.train_batch(samples, np.arange(4, dtype=np.float32))
  first, second = rollout_batches.split(batch, 2)
  assert first.prompt_index.tolist() == [7, 7]
  assert second.prompt_index.tolist() == [8, 8]
  assert second.advantages.tolist() == [2.0, 3.0]
  np.testing.assert_array_equal(second.ids, batch.ids[2:])
