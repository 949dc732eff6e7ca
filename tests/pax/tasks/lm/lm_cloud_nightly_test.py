# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""LmCloudSpmd on the meshes that lm_cloud_test omits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pax.tasks.lm import tiny_cloud


@pytest.mark.parametrize(
  ('mesh', 'num_devices'), [([1, 2, 1], 2), ([2, 2, 2], 8), (None, 1)]
)
def test_losses_are_those_of_one_device(mesh, num_devices):
  wanted, _ = tiny_cloud.losses([1, 1, 1], 1)
  found, _ = tiny_cloud.losses(mesh, num_devices)
  np.testing.assert_allclose(found, wanted, rtol=1e-5)
