# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Every notation of XLA's replica groups, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pax.aot.hlo import replica_groups


@pytest.mark.parametrize(
  ('notation', 'groups'),
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
def test_spellings(notation, groups):
  attributes = f'channel_id=1, {notation}, to_apply=%add'
  np.testing.assert_array_equal(replica_groups.parse(attributes, 4), groups)


def test_a_spelling_that_is_not_known():
  assert replica_groups.parse('replica_groups=unknown', 4) is None
