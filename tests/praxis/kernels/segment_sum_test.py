# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Sums of segments against numpy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.kernels import segment_sum


@pytest.mark.parametrize(
  ('num_rows', 'num_segments', 'sizes'),
  [
    # Segments of none, one and many rows, in blocks of 128 segments.
    (384, 300, {0: 3, 1: 1, 127: 20, 128: 1, 299: 100}),
    # Blocks without rows; one segment that fills several tiles.
    (1024, 512, {200: 900}),
    (128, 1, {}),
    (128, 130, dict.fromkeys(range(2, 130), 1)),
  ],
)
def test_sums(num_rows, num_segments, sizes):
  counts = np.zeros(num_segments, np.int32)
  counts[list(sizes)] = list(sizes.values())
  segments = np.full(num_rows, num_segments)
  segments[: counts.sum()] = np.repeat(np.arange(num_segments), counts)
  # Whole numbers whose sums bfloat16 has.
  rows = np.random.default_rng(0).integers(-2, 3, size=(num_rows, 16))
  wanted = np.zeros((num_segments, 16))
  np.add.at(wanted, segments[: counts.sum()], rows[: counts.sum()])
  assert np.max(np.abs(wanted)) <= 256
  # Rows of no segment may be undefined.
  is_of_none = segments[:, np.newaxis] == num_segments
  sums = segment_sum.segment_sum(
    jnp.asarray(np.where(is_of_none, np.nan, rows), jnp.bfloat16),
    jnp.asarray(segments, jnp.int32),
    jnp.asarray(np.cumsum(counts), jnp.int32),
    interpret=True,
  )
  assert sums.dtype == jnp.bfloat16
  np.testing.assert_array_equal(np.float32(sums), wanted)


def test_products_need_bfloat16_and_whole_tiles():
  assert segment_sum.is_supported(jnp.ones((256, 3), jnp.bfloat16))
  assert not segment_sum.is_supported(jnp.ones((256, 3), jnp.float32))
  assert not segment_sum.is_supported(jnp.ones((200, 3), jnp.bfloat16))


def test_rows_are_added_in_float32():
  # In bfloat16, 256 + 1 is 256.
  rows = jnp.ones((128, 1), jnp.bfloat16).at[0].set(256.0)
  sums = segment_sum.segment_sum(
    rows, jnp.zeros(128, jnp.int32), jnp.asarray([128]), interpret=True
  )
  assert sums.tolist() == [[384.0]]
