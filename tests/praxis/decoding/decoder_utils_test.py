# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Alignment, state transforms and stop sequences on small examples."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from praxis import decoder_utils, sample_decode
from praxis.nested_map import NestedMap

_IDS = jnp.asarray([[3, 2, 5, 0], [4, 0, 0, 0]])
_LENGTHS = jnp.asarray([3, 1])


def test_alignment():
  right = [[0, 3, 2, 5], [0, 0, 0, 4]]
  same = np.testing.assert_array_equal
  same(decoder_utils.right_align_tensors(_IDS, _LENGTHS), right)
  ids, paddings = sample_decode.right_align_prefix_ids(
    _IDS, _LENGTHS, jnp.float32
  )
  same(ids, right)
  same(paddings, [[1, 0, 0, 0], [1, 1, 1, 0]])
  position = sample_decode.right_align_segment_position(_LENGTHS, 4)
  same(position, [[0, 0, 1, 2], [0, 0, 0, 0]])
  # Texts in the middle: prompts end at column 3.
  middle = jnp.asarray([[0, 3, 2, 7, 8], [0, 0, 4, 9, 0]])
  left = decoder_utils.left_align_tensor(middle, jnp.asarray([2, 1]), 3, -1)
  same(left, [[3, 2, 7, 8, -1], [4, 9, 0, -1, -1]])
  cache = jnp.stack([middle, 10 * middle], axis=-1)
  left = decoder_utils.left_align_kv_cache(
    cache, jnp.asarray([2, 1]), 3, batch_size=2
  )
  same(left[..., 1], [[30, 20, 70, 80, 0], [40, 90, 0, 0, 0]])
  with pytest.raises(ValueError, match='align_dim must be in'):
    decoder_utils.right_align_tensors(_IDS, _LENGTHS, 2)
  with pytest.raises(ValueError, match='x must have shape'):
    decoder_utils.left_align_kv_cache(middle, _LENGTHS, 3, batch_size=2)


def test_suffixes():
  decoded = jnp.asarray([[0, 3, 4, 5, 0], [1, 2, 6, 0, 0]])
  out = decoder_utils.concat_suffix_and_left_align(
    decoded,
    jnp.asarray([[7, 8], [9, 0], [7, 8], [9, 0]]),
    jnp.asarray([4, 3]),
    jnp.asarray([1, 2]),
    2,
    num_samples=1,
    num_suffix=2,
    pad_value=0,
  )
  np.testing.assert_array_equal(
    out[:, :, 0],
    [
      [[3, 4, 5, 7, 8, 0, 0], [3, 4, 5, 9, 0, 0, 0]],
      [[1, 2, 6, 7, 8, 0, 0], [1, 2, 6, 9, 0, 0, 0]],
    ],
  )


def test_transforms_of_states():
  x = jnp.arange(12).reshape(2, 3, 2)
  assert decoder_utils.pad_state_fn(2)(x, 0, 1).shape == (2, 5, 2)
  cut = decoder_utils.slice_state_fn(0, -1)(x, 0, 1)
  np.testing.assert_array_equal(cut, x[:, :-1])
  repeated = decoder_utils.batch_broadcast_state_fn(2)(x, 0, 1)
  np.testing.assert_array_equal(repeated, np.repeat(x, 2, axis=0))
  right = decoder_utils.right_align_state_fn(jnp.asarray([3, 1]))(x, 0, 1)
  np.testing.assert_array_equal(right[0], x[0])
  np.testing.assert_array_equal(right[1], [[0, 0], [0, 0], [6, 7]])
  for fn in (
    decoder_utils.pad_state_fn(2),
    decoder_utils.slice_state_fn(0, 1),
    decoder_utils.batch_broadcast_state_fn(2),
    decoder_utils.right_align_state_fn(jnp.asarray([1, 1])),
  ):
    assert fn(x, -1, -1) is x


def test_ends():
  ids = jnp.asarray([[3, 4, 5, 6], [1, 2, 3, 4], [9, 9, 9, 9]])
  stops = jnp.asarray([[0, 5], [2, 4], [0, 0]])
  got = [decoder_utils.end_with_sequences(stops, ids, t) for t in (2, 3)]
  np.testing.assert_array_equal(got, [[True, False, False], [False] * 3])
  several = jnp.asarray([[[4, 5], [0, 6]], [[0, 0], [2, 3]], [[0, 8], [0, 9]]])
  matches = decoder_utils.end_with_any_sequence_any_position(
    several, ids, jnp.asarray([[0, 2, 3]] * 3)
  )
  want = np.zeros((3, 3, 2), bool)
  want[0, 1, 0] = want[0, 2, 1] = want[1, 1, 1] = True
  want[2, :, 1] = True
  np.testing.assert_array_equal(matches, want)
  first = decoder_utils.find_first_new_stop_seq_match(
    jnp.asarray([1, 0, 3]), 2, several, ids
  )
  np.testing.assert_array_equal(first, [1, 2, 0])
  np.testing.assert_array_equal(
    decoder_utils.has_any_eos(ids, [3, 9])[:, 0], [True, False, True]
  )


def test_samples_in_order():
  samples = NestedMap(
    logprobs=jnp.asarray([[[1.0, -3, 1], [1, -1, -1], [1, -0.5, 1]]]),
    name=jnp.asarray([[1, 2, 3]]),
  )
  out = sample_decode.sort_samples_by_scores(samples, 1.0)
  np.testing.assert_array_equal(out.name, [[3, 2, 1]])
  split = sample_decode.split_batch_dim(jnp.arange(6), 0, 3)
  np.testing.assert_array_equal(split, [[0, 1, 2], [3, 4, 5]])
  with pytest.raises(ValueError, match='multiple of num_samples=4'):
    sample_decode.split_batch_dim(jnp.arange(6), 0, 4)
