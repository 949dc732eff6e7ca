# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Masks against definitions written out position by position."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import attentions
from praxis.layers.attentions import masks

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


@pytest.mark.parametrize('pos', [None, [3, 0], [[3, 4], [0, 1]]])
def test_step_positions(pos):
  segment_pos = None if pos is None else jnp.array(pos)
  want = [[5, 6]] if pos is None else [[3, 4], [0, 1]]
  got = masks.step_positions(segment_pos, 5, 2)
  np.testing.assert_array_equal(got, want)


def test_segment_step_mask_shows_the_segment_so_far():
  mask = masks.segment_step_mask(3, 6, jnp.array([[3, 4], [1, 0]]))
  first = [[0, 0], [2, 4]]
  want = _where((2, 1, 2, 6), lambda b, n, t, s: first[b][t] <= s <= 3 + t)
  np.testing.assert_array_equal(_visible(mask), want)


@pytest.mark.parametrize('first_query', range(8))
def test_key_span_holds_all_visible_keys(first_query):
  window = masks.context_window(3, 1)
  start, size = window.key_span(first_query, 2, 9)
  assert (start, size) == (
    int(window.key_span(jnp.int32(first_query), 2, 9)[0]),
    5,
  )
  visible = _visible(window.mask(2, 9, first_query, jnp.float32))
  keys = np.flatnonzero(visible.any(0))
  assert start <= keys.min() and keys.max() < start + size
  sliced = masks.slice_span(jnp.asarray(visible), (start, size), 1)
  np.testing.assert_array_equal(sliced, visible[:, start : start + size])


def test_no_limits_no_window():
  assert masks.context_window(None, None) is None
  assert masks.ContextWindow(None, 2).key_span(4, 1, 9) == (0, 9)
