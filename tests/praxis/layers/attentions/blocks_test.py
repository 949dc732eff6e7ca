# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Blocks of a sequence, and what they see."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import attentions
from praxis.layers.attentions import blocks


def test_blocks_are_filled_up():
  x = jnp.arange(10.0).reshape(2, 5)
  got = attentions.convert_to_block(x, 2, padding_val=-1.0)
  np.testing.assert_array_equal(
    got, [[[0, 1], [2, 3], [4, -1]], [[5, 6], [7, 8], [9, -1]]]
  )
  with pytest.raises(ValueError, match='block_size must be at least 1, got 0'):
    attentions.convert_to_block(x, 0)


@pytest.mark.parametrize('left, right', [(1, 0), (3, 2), (2, 1)])
def test_context_surrounds_each_block(left, right):
  x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
  got = attentions.extract_block_context(jnp.asarray(x), 2, left, right, -7.0)
  assert got.shape == (2, 3, 2 + left - 1 + right, 3)
  for u in range(3):
    for c in range(got.shape[2]):
      t = 2 * u - left + 1 + c
      want = x[:, t] if 0 <= t < 5 else np.full((2, 3), -7.0)
      np.testing.assert_array_equal(got[:, u, c], want)


@pytest.mark.parametrize('rows', [1, 5])
def test_masks_follow_the_context(rows):
  mask = -np.random.default_rng(0).integers(1, 9, (2, 1, rows, 5))
  mask = mask.astype(np.float32)
  got = blocks.extract_block_mask(jnp.asarray(mask), 2, 3, 1)
  assert got.shape == (2, 3, 1, min(rows, 2), 5)
  for u, w, c in np.ndindex(3, min(rows, 2), 5):
    t, s = 2 * u + w, 2 * u - 2 + c
    if 0 <= s < 5 and t < 5:
      want = mask[:, 0, t if rows > 1 else 0, s]
      np.testing.assert_array_equal(got[:, u, 0, w, c], want)
    else:
      assert np.all(got[:, u, 0, w, c] < -1e38)


@pytest.mark.parametrize('left, right', [(0, 0), (4, 0), (1, 3), (1, -1)])
def test_context_stays_in_the_neighbours(left, right):
  with pytest.raises(ValueError, match='raise block_size'):
    attentions.extract_block_context(jnp.zeros((1, 4)), 2, left, right)
