# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Computed orders are uniform permutations."""

from __future__ import annotations

import numpy as np
import pytest

from pax.inputs.rows import index_permutation


@pytest.mark.parametrize('size', [1, 2, 3, 4, 5, 17, 256, 1000, 4097])
def test_every_index_comes_once(size):
  order = index_permutation.permuted(np.arange(size), size, seed=3)
  assert sorted(order) == list(range(size))


def test_any_part_agrees_with_the_whole():
  whole = index_permutation.permuted(np.arange(1000), 1000, seed=7)
  some = np.array([[999, 3], [0, 500]])
  np.testing.assert_array_equal(
    index_permutation.permuted(some, 1000, seed=7), whole[some]
  )


def test_seeds_give_different_orders():
  orders = {
    tuple(index_permutation.permuted(np.arange(20), 20, seed=s))
    for s in range(100)
  }
  assert len(orders) == 100


def test_places_are_uniform():
  """Where index 0 lands, over seeds: chi-squared with 15 degrees, p > 1e-4."""
  first = [
    int(index_permutation.permuted([0], 16, seed=s)[0]) for s in range(4000)
  ]
  counts = np.bincount(first, minlength=16)
  assert ((counts - 250) ** 2 / 250).sum() < 44


def test_neighbors_are_torn_apart():
  order = index_permutation.permuted(np.arange(5000), 5000, seed=1)
  correlation = np.corrcoef(order[:-1], order[1:])[0, 1]
  assert abs(correlation) < 0.05
  assert abs(np.corrcoef(order, np.arange(5000))[0, 1]) < 0.05


def test_large_sizes_and_negative_seeds():
  order = index_permutation.permuted([0, 2**40], 2**40 + 1, seed=-5)
  assert all(0 <= order) and all(order <= 2**40)


def test_the_order_is_the_same_for_ever():
  assert list(index_permutation.permuted(np.arange(8), 8, seed=42)) == [
    4,
    3,
    2,
    0,
    6,
    1,
    7,
    5,
  ]


def test_an_index_outside_is_refused():
  with pytest.raises(ValueError, match='within 0 and 4'):
    index_permutation.permuted([5], 5, seed=0)


def test_an_endless_order_is_one_permutation_after_another():
  found = index_permutation.endless(np.arange(30), 10, seed=5)
  for epoch in range(3):
    wanted = index_permutation.permuted(np.arange(10), 10, 5 + (epoch << 32))
    np.testing.assert_array_equal(found[10 * epoch : 10 * epoch + 10], wanted)
