# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Tensors are merged, cut and put together again."""

from __future__ import annotations

import numpy as np
import pytest

from praxis.optimizers.shampoo import block_partition


@pytest.mark.parametrize(
  'shape, largest, want',
  [
    ((1, 2, 512, 1, 2048, 1, 3, 4), 1024, (1024, 2048, 12)),
    ((1, 2, 768, 1, 2048), 1024, (2, 768, 2048)),
    ((1, 1), 1024, (1,)),
    ((), 1024, ()),
    ((4, 6), 24, (24,)),
    ((4, 6), 23, (4, 6)),
  ],
)
def test_small_dimensions_merge(shape, largest, want):
  assert block_partition.merge_small_dims(shape, largest) == want


@pytest.mark.parametrize('block_size', [0, 3, 4, 100])
def test_what_was_cut_is_joined(block_size):
  x = np.arange(7 * 2 * 9, dtype=np.float32).reshape(7, 2, 9)
  cut = block_partition.BlockPartition(x.shape, (14, 9), block_size)
  parts = cut.split(x)
  assert [part.shape for part in parts] == cut.sizes
  np.testing.assert_array_equal(cut.join(parts), x)


def test_blocks_come_in_rows():
  cut = block_partition.BlockPartition((5, 4), (5, 4), 3)
  assert cut.sizes == [(3, 3), (3, 1), (2, 3), (2, 1)]
  x = np.arange(20.0).reshape(5, 4)
  np.testing.assert_array_equal(cut.split(x)[1], x[:3, 3:])
  np.testing.assert_array_equal(cut.split(x)[2], x[3:, :3])
