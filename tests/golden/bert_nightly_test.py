# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: size=large
# bazel: tags=nightly
# bazel: env=PAX_CHECK_SHAPES=0
"""What the experiments of bert.py resolve to; 66 layers take their time.

UPDATE_GOLDEN=1 pytest tests/golden    # accepts what it resolves to now
"""

from __future__ import annotations

import pytest

from pax import experiment_registry
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


def test_these_are_all():
  registered = {
    name.rpartition('.')[2]
    for name in experiment_registry.get_all()
    if name.startswith(f'{bert.__name__}.')
  }
  assert registered == set(_SIZES)


def test_resolve_to_the_golden_texts():
  made = experiment_texts.texts([getattr(bert, name) for name in _SIZES])
  golden = experiment_texts.golden('bert', made)
  assert list(golden) == list(made), f'run UPDATE_GOLDEN=1 pytest {__file__}'
  for name, text in made.items():
    assert text == golden[name], name


@pytest.mark.parametrize('name', _SIZES)
def test_size_is_that_of_its_numbers(name):
  found = experiment_texts.resolve(getattr(bert, name)).num_params
  biases_norms_and_positions = 0.02
  assert 1 <= found / _SIZES[name] < 1 + biases_norms_and_positions
