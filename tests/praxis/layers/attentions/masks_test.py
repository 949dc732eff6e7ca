# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Masks against definitions written out position by position."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import attentions

_SEGMENTS = np.array([[1, 1, 2, 2, 0], [1, 1, 1, 1, 1]])


def _visible(mask):
  mask = np.asarray(mask, np.float32)
  assert set(np.unique(mask)) <= {0.0, mask.min()}
  assert mask.min() == 0.0 or mask.min() < -2e38
  return mask == 0.0


def _where(shape, condition):
  return np.fromfunction(np.vectorize(condition), shape, dtype=int)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16, jnp.int32])
def test_causal_mask(dtype):
  mask = attentions.causal_mask(jnp.zeros((2, 4, 3), dtype))
  assert mask.dtype == (jnp.float32 if dtype == jnp.int32 else dtype)
  want = _where((1, 1, 4, 4), lambda b, h, t, s: s <= t)
  np.testing.assert_array_equal(_visible(mask), want)


def test_segment_mask():
  mask = attentions.segment_mask(jnp.asarray(_SEGMENTS))
  want = _where(
    (2, 1, 5, 5), lambda b, h, t, s: _SEGMENTS[b, t] == _SEGMENTS[b, s]
  )
  np.testing.assert_array_equal(_visible(mask), want)


def test_segment_mask_between_sequences():
  source = np.array([[2, 1], [0, 1]])
  mask = attentions.segment_mask(
    jnp.asarray(_SEGMENTS), jnp.asarray(source), jnp.bfloat16
  )
  assert mask.dtype == jnp.bfloat16
  want = _where(
    (2, 1, 5, 2), lambda b, h, t, s: _SEGMENTS[b, t] == source[b, s]
  )
  np.testing.assert_array_equal(_visible(mask), want)


@pytest.mark.parametrize('prefix', [False, True])
def test_causal_segment_mask(prefix):
  causal = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
  mask = attentions.causal_segment_mask(
    jnp.asarray(_SEGMENTS),
    jnp.float32,
    jnp.asarray(causal) if prefix else None,
  )

  def visible(b, h, t, s):
    same = _SEGMENTS[b, t] == _SEGMENTS[b, s]
    return same and (s <= t or (prefix and not causal[b, s]))

  np.testing.assert_array_equal(_visible(mask), _where((2, 1, 5, 5), visible))


def test_paddings_mask():
  mask = attentions.convert_paddings_to_mask(jnp.array([[0, 0, 1.0]]))
  np.testing.assert_array_equal(_visible(mask), [[[[True, True, False]]]])


@pytest.mark.parametrize(
  'left, right', [(None, None), (1, 0), (2, 1), (None, 0), (3, None)]
)
def test_limited_context_mask(left, right):
  mask = attentions.limited_context_mask(left, right, 4, column_time_size=6)

  def visible(t, s):
    return (left is None or s > t - left) and (right is None or s <= t + right)

  np.testing.assert_array_equal(_visible(mask), _where((4, 6), visible))


def test_merged_mask_hides_what_either_hides():
  causal = attentions.causal_mask(jnp.zeros((1, 5)))
  segment = attentions.segment_mask(jnp.asarray(_SEGMENTS))
  merged = attentions.merge_masks(causal, segment)
  want = _visible(causal) & _visible(segment)
  np.testing.assert_array_equal(_visible(merged), want)
  both_ways = attentions.merge_masks(segment, causal)
  np.testing.assert_array_equal(merged, both_ways)


def test_merged_padding_hides_rows_too():
  padding = attentions.convert_paddings_to_mask(jnp.array([[0, 0, 1.0]]))
  causal = attentions.causal_mask(jnp.zeros((1, 3)))
  merged = _visible(attentions.merge_masks(padding, causal))[0, 0]
  np.testing.assert_array_equal(merged, [[1, 0, 0], [1, 1, 0], [0, 0, 0]])


def test_masks_of_another_rank_are_refused():
  mask = attentions.causal_mask(jnp.zeros((1, 3)))
  # Without the checks of shapes that tests add to signatures.
  merge_masks = inspect.unwrap(attentions.merge_masks)
  with pytest.raises(ValueError, match=r'mask b must have shape.*\[3, 3\]'):
    merge_masks(mask, mask[0, 0])


def test_apply_mask_tolerates_sums_and_other_dtypes():
  hidden = attentions.causal_mask(jnp.zeros((1, 2), jnp.bfloat16))
  logits = jnp.array([[[[1.0, 2.0], [3.0, 4.0]]]])
  for mask in (hidden, hidden.astype(jnp.float32), hidden + hidden * 0.3):
    masked = attentions.apply_mask(logits, mask)
    assert masked.dtype == logits.dtype
    np.testing.assert_array_equal(masked[..., 1, :], logits[..., 1, :])
    assert masked[0, 0, 0, 0] == 1.0 and masked[0, 0, 0, 1] < -2e38
    assert np.all(np.isfinite(masked))
