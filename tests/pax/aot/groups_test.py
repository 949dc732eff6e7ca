# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""XLA's spellings of groups of devices, read by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pax.aot import groups


@pytest.mark.parametrize(
  ('spelled', 'rows'),
  [
    ('replica_groups={{0,1},{2,3}}, x=1', [[0, 1], [2, 3]]),
    ('replica_groups={}', [[0, 1, 2, 3]]),
    ('source_target_pairs={{0,1},{1,2}}', [[0, 1], [1, 2]]),
    ('replica_groups=[2,2]<=[4]', [[0, 1], [2, 3]]),
    ('replica_groups=[2,2]<=[2,2]T(1,0)', [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'b'}", [[0, 1], [2, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [[0, 1, 2, 3]]),
    (
      "replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}",
      [[0, 1], [2, 3]],
    ),
    (
      "replica_groups=mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}",
      [[3, 2], [1, 0]],
    ),
    ("replica_groups=mesh['a'=4] {'a':(1)2}", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=4] {'a':(2)2}", [[0, 1], [2, 3]]),
  ],
)
def test_spellings(spelled, rows):
  found = groups.parse(f'channel_id=1, {spelled}, to_apply=%add', 4)
  np.testing.assert_array_equal(found, rows)


def test_a_spelling_that_is_not_known():
  assert groups.parse('replica_groups=whatever', 4) is None
