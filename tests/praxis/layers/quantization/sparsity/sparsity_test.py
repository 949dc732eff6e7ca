# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Masks against numpy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers.quantization.sparsity import sparsity
from tests.praxis.layers import running

_W = running.normal(8, 16)


def _rows(order, array):
  return array if order == 'R' else array.T


@pytest.mark.parametrize('order', ['R', 'C'])
@pytest.mark.parametrize('offset', [0, 2])
def test_n_of_m_are_kept(order, offset):
  got = sparsity.get_sparsity_mask(_W, 1, 4, order=order, offset=offset)
  scores, mask = _rows(order, np.abs(_W)), _rows(order, np.asarray(got))
  stride = max(1, offset)
  for row in range(scores.shape[0]):
    for start in range(0, scores.shape[1], 4 * stride):
      for i in range(stride):
        places = start + i + stride * np.arange(4)
        want = scores[row, places] == scores[row, places].max()
        np.testing.assert_array_equal(mask[row, places], want)
  if offset:
    same = sparsity.get_sparsity_mask_optimized_for_offset(
      _W, 1, 4, order, offset
    )
    np.testing.assert_array_equal(same, got)


@pytest.mark.parametrize('order', ['R', 'C'])
def test_blocks_are_kept_together(order):
  got = sparsity.get_sparsity_mask(_W, 1, 2, order=order, block_size=2)
  scores, mask = _rows(order, np.abs(_W)), _rows(order, np.asarray(got))
  blocks = scores.reshape(scores.shape[0], -1, 2, 2).sum(-1)
  want = blocks == blocks.max(-1, keepdims=True)
  np.testing.assert_array_equal(mask, want.repeat(2, -1).reshape(mask.shape))


def test_channels_and_percentages():
  mask = sparsity.get_sparsity_mask_channelwise(jnp.abs(_W), 0.75)
  best = np.argsort(-np.abs(_W).sum(0))[:4]
  want = np.isin(np.arange(16), best)
  np.testing.assert_array_equal(mask, np.broadcast_to(want, (8, 16)))
  cut = sparsity.apply_sparsity(_W, mask, channelwise_dim=-1)
  np.testing.assert_array_equal(cut, np.asarray(_W)[:, want])
  mask = sparsity.get_sparsity_mask_unstructured(_W, None, 25.0)
  threshold = np.percentile(np.abs(_W), 25.0)
  np.testing.assert_array_equal(mask, np.abs(_W) > threshold)
  more = sparsity.get_sparsity_mask_unstructured(_W, mask, 50.0)
  assert not np.any(np.asarray(more) & ~np.asarray(mask))


def test_equal_weights_are_pruned_by_the_percentage_only():
  # The threshold of a percentile would prune all of them.
  equal, mask = jnp.zeros((4, 8)), jnp.ones((4, 8), jnp.bool_)
  for percent, kept in ((0.0, 32), (25.0, 24), (50.0, 16), (100.0, 0)):
    mask = sparsity.get_sparsity_mask_unstructured(equal, mask, percent)
    assert mask.sum() == kept
    again = sparsity.get_sparsity_mask_unstructured(equal, mask, percent)
    np.testing.assert_array_equal(again, mask)


def test_scores_may_weigh_inputs():
  x = running.normal(2, 3, 8, seed=3)
  got = sparsity.compute_score(
    _W, sparsity.SparsityScore.ACTIVATION_WEIGHTED, x
  )
  want = np.abs(_W) * np.abs(x).sum((0, 1))[:, None]
  np.testing.assert_allclose(got, want, rtol=1e-5)
  with pytest.raises(ValueError, match='`inputs` must be given'):
    sparsity.compute_score(_W, sparsity.SparsityScore.ACTIVATION_WEIGHTED)
  with pytest.raises(ValueError, match='needs a matrix'):
    sparsity.compute_score(
      _W, sparsity.SparsityScore.ACTIVATION_WEIGHTED, x[..., :2]
    )


def test_what_does_not_fit_is_refused():
  for match, args in (
    ('N must be', (3, 2)),
    ('multiple of M', (1, 3)),
    ("order must be 'C' or 'R'", (1, 2, 'X')),
    ('offset must not be negative', (1, 2, 'R', 0, -1)),
    ('block_size must divide', (1, 2, 'R', 3)),
  ):
    with pytest.raises(ValueError, match=match):
      sparsity.get_sparsity_mask(_W, *args)
