# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Mixtures: proportions, coverage, and independence of what was asked."""

from __future__ import annotations

import numpy as np
import pytest

from pax.inputs.rows import index_permutation, mixtures

BLOCK = mixtures.BLOCK_SIZE


def test_each_block_has_the_weights_and_each_epoch_all_records():
  mixture = mixtures.Mixture([1000, 70], {0: [3, 1]}, seed=1)
  indices = mixture.indices(np.arange(3 * BLOCK))
  for block in indices.reshape(3, BLOCK):
    assert (block < 1000).sum() == BLOCK * 3 // 4
  first, second = indices[indices < 1000], indices[indices >= 1000] - 1000
  for records, size in ((first, 1000), (second, 70)):
    for epoch in range(len(records) // size):
      part = records[epoch * size : (epoch + 1) * size]
      assert sorted(part) == list(range(size))


def test_any_subset_of_positions_gives_the_same_records():
  mixture = mixtures.Mixture([10, 20, 30], {0: [0.5, 0.2, 0.3]}, seed=5)
  expected = mixture.indices(np.arange(2 * BLOCK))
  rng = np.random.default_rng(0)
  for _ in range(20):
    positions = rng.integers(0, 2 * BLOCK, 17)
    other = mixtures.Mixture([10, 20, 30], {0: [0.5, 0.2, 0.3]}, seed=5)
    np.testing.assert_array_equal(other.indices(positions), expected[positions])
  seeds = mixtures.Mixture([10, 20, 30], {0: [0.5, 0.2, 0.3]}, seed=6)
  assert (seeds.indices(np.arange(BLOCK)) != expected[:BLOCK]).any()


def test_shares_are_rounded_to_the_block():
  counts = np.bincount(
    mixtures.Mixture([1, 1, 1], {0: [1, 1, 1]}, seed=0).indices(
      np.arange(BLOCK)
    )
  )
  assert counts.sum() == BLOCK and counts.max() - counts.min() == 1


def test_weights_change_at_a_position():
  sizes, seed = [50_000, 40_000, 30_000], 3
  weights = {0: [3, 1, 0], 10_000: [0, 1, 1], 30_001: [1, 0, 0]}
  mixture = mixtures.Mixture(sizes, weights, seed)
  indices = mixture.indices(np.arange(60_000))
  # Until a change the sequence is that without it.
  first = mixtures.Mixture(sizes, {0: [3, 1, 0]}, seed)
  np.testing.assert_array_equal(
    indices[:10_000], first.indices(np.arange(10_000))
  )
  assert (indices[30_001:] < sizes[0]).all()
  second = indices[10_000:30_001]
  assert (second >= sizes[0]).all()
  block = second[:BLOCK]
  assert (block < sizes[0] + sizes[1]).sum() == BLOCK // 2
  # Each component gives the records of its own order, one after the other.
  ends = np.cumsum(sizes)
  for component, (end, size) in enumerate(zip(ends, sizes, strict=True)):
    start = end - size
    records = indices[(indices >= start) & (indices < end)] - start
    expected = index_permutation.endless(
      np.arange(len(records)), size, seed + component
    )
    np.testing.assert_array_equal(records, expected)
  # Any positions, in any order, at once.
  positions = np.random.default_rng(0).integers(0, 60_000, 500)
  other = mixtures.Mixture(sizes, weights, seed)
  np.testing.assert_array_equal(other.indices(positions), indices[positions])


@pytest.mark.parametrize(
  ('sizes', 'weights', 'message'),
  [
    ([1, 1], [1], 'one for each of the 2'),
    ([1, 1], [0, 0], 'one weight must be positive'),
    ([1, 1], [1, -1], 'must be at least 0'),
    ([1, 1], [1, float('nan')], 'must be at least 0'),
    ([1, 1], [1, float('inf')], 'must be finite'),
    ([1, 1], [1, 'x'], "weights must be numbers, got 'x'"),
    ([1, 0], [1, 1], r'must have records, got sizes \[1, 0\]'),
    ([1, 1], [1, 1e-6], 'at least 1/8192, got 1e-06'),
  ],
)
def test_wrong_weights(sizes, weights, message):
  with pytest.raises(ValueError, match=message):
    mixtures.Mixture(sizes, {0: weights}, seed=0)


@pytest.mark.parametrize('weights', [{}, {5: [1, 1]}])
def test_weights_hold_from_the_first_position(weights):
  with pytest.raises(ValueError, match='must hold from position 0, got'):
    mixtures.Mixture([1, 1], weights, seed=0)
