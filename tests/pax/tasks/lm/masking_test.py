# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Fractions of masked, random and unchanged tokens; checks of the fields."""

from __future__ import annotations

import numpy as np
import pytest

from pax.tasks.lm import input_generator, masking


def make(**kwargs):
  settings = {'mask_token_id': 1, 'vocab_size': 1000, **kwargs}
  return masking.MaskedLmDataAugmenter.config(**settings).Instantiate()


def test_shares_are_the_probabilities():
  ids = np.full(100_000, 5, np.int32)
  masked, chosen = make()(ids, np.random.default_rng(0))
  assert (masked.dtype, chosen.dtype) == (np.int32, np.float32)
  assert chosen.mean() == pytest.approx(0.15, rel=0.03)
  assert (masked == 1).mean() == pytest.approx(0.12, rel=0.03)
  is_random = (masked != 1) & (masked != 5)
  assert is_random.mean() == pytest.approx(0.015, rel=0.1)
  assert set(np.unique(masked)) <= set(range(1000))
  # Nothing changes where nothing is asked.
  np.testing.assert_array_equal(masked[chosen == 0], 5)


def test_the_generator_decides():
  ids = np.arange(50, dtype=np.int32)
  first, second = (make()(ids, np.random.default_rng(3)) for _ in range(2))
  np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'mask_token_id': -1}, 'mask_token_id'),
    ({'mask_token_id': 1000}, 'got 1000'),
    ({'mask_prob': -0.1}, 'must not be negative'),
    ({'same_prob': 0.9}, r'a sum in \(0, 1\)'),
  ],
)
def test_what_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    make(**settings).validate()


def test_augmenters_of_keyword_arguments():
  augmenter = input_generator.make_masked_ml_data_augmenter(
    vocab_size=50, mask_token_id=3
  )
  assert isinstance(augmenter, masking.MaskedLmDataAugmenter)
  assert (augmenter.vocab_size, augmenter.mask_token_id) == (50, 3)


def test_ids_that_are_no_random_tokens():
  augment = masking.MaskedLmDataAugmenter(
    vocab_size=6,
    mask_prob=0.0,
    random_prob=0.9,
    same_prob=0.0,
    mask_token_id=5,
    random_avoid_ids=[0, 2, 5],
  )
  augment.validate()
  ids = np.full(2000, 9, np.int32)
  masked_ids, _ = augment(ids, np.random.default_rng(0))
  counts = np.bincount(masked_ids, minlength=10)
  assert not counts[[0, 2, 5]].any()
  np.testing.assert_allclose(counts[[1, 3, 4]] / 2000, 0.3, atol=0.05)
  with pytest.raises(ValueError, match='random_avoid_ids .* must leave ids'):
    masking.MaskedLmDataAugmenter(
      vocab_size=2, mask_token_id=1, random_avoid_ids=[0, 1]
    ).validate()
