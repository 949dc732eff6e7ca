# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: size=large
# bazel: tags=nightly
"""What the experiments of bert.py resolve to; 66 layers take their time.

UPDATE_GOLDEN=1 pytest tests/golden    # accepts what it resolves to now
"""

from __future__ import annotations

import pytest

from pax.tasks.lm.params import bert
from tests.golden import experiment_texts

_WIDE_LAYER = 20 * 12288**2
# Parameters without biases, norms and positions.
_SIZES = {
  'BertAdamL4H128': 32000 * 128 + 4 * 12 * 128**2,
  'BertSpmdL4H128': 32000 * 128 + 4 * 12 * 128**2,
  'BertSpmdL33H12kBiggerBatch': 32000 * 12288 + 33 * _WIDE_LAYER,
  'BertSpmdL33H12kBiggerBatch8x8x16': 32000 * 12288 + 33 * _WIDE_LAYER,
  'BertSpmdL66H12kBiggerBatch8x8x16': 32000 * 12288 + 66 * _WIDE_LAYER,
  'BertSpmdL66H12kBiggerBatch8x8x8': 32000 * 12288 + 66 * _WIDE_LAYER,
}
_FAMILY = experiment_texts.Family(
  'bert', [getattr(bert, name) for name in _SIZES]
)


def test_these_are_all():
  assert experiment_texts.registered(bert) == set(_SIZES)


@pytest.mark.parametrize('name', _SIZES)
def test_resolves_to_the_golden_text(name):
  assert _FAMILY.made(name) == _FAMILY.accepted(name)


@pytest.mark.parametrize('name', _SIZES)
def test_size_is_that_of_its_numbers(name):
  found = experiment_texts.resolve(getattr(bert, name)).num_params
  biases_norms_and_positions = 0.02
  assert 1 <= found / _SIZES[name] < 1 + biases_norms_and_positions
