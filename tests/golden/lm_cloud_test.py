# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: size=large
"""What each lm_cloud experiment resolves to, as text that changes visibly.

UPDATE_GOLDEN=1 pytest tests/golden    # accepts what it resolves to now
"""

from __future__ import annotations

import pytest

from pax.tasks.lm.params import lm_cloud
from tests.golden import experiment_texts

# Numbers of parameters in millions, reckoned from the sizes alone: V * D for
# the embedding, 4 * D * D + 2 * D * F for a layer; no biases, no norms.
_MILLIONS = {
  'LargeMlp': 383.8,
  'SmallMlp': 9.4,
  'LmCloudTransformerAdam': 435.4,
  'LmCloudTransformerAdamTest': 57.9,
  'LmCloudTransformerAdamLimitSteps': 158.6,
  'LmCloudSpmdTest': 2.146,
  'LmCloudSpmd2B': 2136.7,
  'LmCloudSpmd2BLimitSteps': 2136.7,
  'LmCloudSpmd32B': 32474,
  'LmCloudSpmd64B': 64500,
  'LmCloudSpmd128B': 129040,
  'LmCloudSpmd256B': 258220,
  'LmCloudSpmd512B': 514040,
  'LmCloudSpmd1024B': 1029970,
  'LmCloudSpmdPipeline9B': 9795,
  'LmCloudSpmdPipeline175B': 174340,
  'LmCloudSpmdMultislice2B': 2136.7,
  'LmCloudSpmdPipelineMultislice2B': 2136.7,
  'LmCloudSpmdPipelineMultislice2BCircular': 2136.7,
}
_FAMILY = experiment_texts.Family(
  'lm_cloud', [getattr(lm_cloud, name) for name in _MILLIONS]
)


def test_these_are_all():
  assert experiment_texts.registered(lm_cloud) == set(_MILLIONS)


@pytest.mark.parametrize('name', _MILLIONS)
def test_resolves_to_the_golden_text(name):
  assert _FAMILY.made(name) == _FAMILY.accepted(name)


@pytest.mark.parametrize('name', _MILLIONS)
def test_size_is_that_of_its_name(name):
  found = experiment_texts.resolve(getattr(lm_cloud, name)).num_params
  biases_and_norms = 0.02
  assert 1 <= found / 1e6 / _MILLIONS[name] < 1 + biases_and_norms
