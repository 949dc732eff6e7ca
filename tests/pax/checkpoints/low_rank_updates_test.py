# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Weights of a checkpoint are not used without their low-rank updates."""

from __future__ import annotations

import pytest

from pax.checkpoints import low_rank_updates
from pax.checkpoints.types import CheckpointError
from pax.files import storage

_LAYER = 'mdl_vars.params.lm.linear'
_WEIGHT, _A, _B, _DELTA = (
  f'{_LAYER}.{name}'
  for name in ('w', 'lora_a', 'lora_b', 'lora_magnitude_delta')
)
_PATH = storage.to_path('/job/checkpoints/checkpoint_00000001')


def test_a_weight_needs_its_update():
  saved = {
    _WEIGHT: ((4, 5), 'float32'),
    _A: ((4, 3), 'float32'),
    _B: ((5, 3), 'float32'),
  }
  low_rank_updates.check_used(_PATH, saved, {_WEIGHT, _A, _B})
  low_rank_updates.check_used(_PATH, saved, {'step'})
  with pytest.raises(CheckpointError, match=f'{_A} of shape .*LORA_RANK=3 and'):
    low_rank_updates.check_used(_PATH, saved, {_WEIGHT})


def test_a_weight_needs_the_magnitudes_of_its_update():
  saved = {
    _WEIGHT: ((4, 5), 'float32'),
    _A: ((4, 3), 'float32'),
    _DELTA: ((5,), 'float32'),
  }
  low_rank_updates.check_used(_PATH, saved, saved)
  with pytest.raises(CheckpointError, match='set LORA_USE_DORA=True and'):
    low_rank_updates.check_used(_PATH, saved, {_WEIGHT, _A})


def test_an_update_without_magnitudes_does_not_get_others():
  leaves = {_WEIGHT, _A, _DELTA}
  low_rank_updates.check_magnitudes(_PATH, leaves, leaves)
  # A new update has new magnitudes.
  low_rank_updates.check_magnitudes(_PATH, {_WEIGHT}, leaves)
  with pytest.raises(CheckpointError, match='set LORA_USE_DORA=False, or'):
    low_rank_updates.check_magnitudes(_PATH, {_WEIGHT, _A}, leaves)
