# SPDX-License-Identifier: Apache-2.0
"""Groups of items with a limited number of bytes."""

# bazel: size=medium
from __future__ import annotations

import pytest

from pax.checkpoints import byte_groups


@pytest.mark.parametrize(
  ('sizes', 'groups'),
  [
    ([], []),
    ([3], [[3]]),
    ([11], [[11]]),
    ([4, 6, 1], [[4, 6], [1]]),
    ([1, 11, 2, 8, 1], [[1], [11], [2, 8], [1]]),
    ([0, 10, 0, 1], [[0, 10, 0], [1]]),
  ],
)
def test_groups(sizes, groups):
  assert list(byte_groups.split_by_bytes(sizes, lambda x: x, 10)) == groups
