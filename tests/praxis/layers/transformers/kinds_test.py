# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""What holds for every kind of layer; all of equality is in the nightly test.

Compiled or not, one by one or scanned, the numbers are the same; and nothing
passes between segments, from padding, or from later to earlier positions.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.praxis.layers.transformers import equality, kinds
from tests.testing import nightly

SEGMENTS = equality.SEGMENTS


def test_scanned_layers_are_the_same_function():
  outputs, by_inputs, by_params = equality.reference('plain')
  got = equality.scanned('plain')
  want = outputs, by_inputs, equality.stacked(by_params)
  equality.assert_close(got, want, 1e-5)


# The others attend to the same positions.
_BY_DAY = [
  'positions_of_segments', 'convolved', 'normed_heads', 'xl', 'local',
  'local_relative_bias', 'one_key_head', 'key_head_windows', 'fused', 'primer',
  'experts',
]  # fmt: skip


@pytest.mark.parametrize('name', nightly.except_for(_BY_DAY, kinds.KINDS))
def test_nothing_leaks(name):
  _, by_inputs, _ = equality.reference(name, 1)
  everything, first, second, early = (np.abs(x).max(-1) for x in by_inputs)
  assert not np.any(everything[SEGMENTS == 0])
  assert not np.any(first[SEGMENTS != 1])
  assert not np.any(second[SEGMENTS != 2])
  assert not np.any(early[:, 4:])
  # The same gradients are not zero where something is to be seen.
  assert np.all(first[SEGMENTS == 1]) and np.all(second[SEGMENTS == 2])
