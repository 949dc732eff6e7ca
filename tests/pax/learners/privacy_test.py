# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Epsilon of DP-SGD: the published value, dp-accounting's, and by hand."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from pax.learners import privacy, stochastic_gradients

# The MNIST tutorial of TensorFlow Privacy: 60 epochs, published as 3.01 by the
# conversion of Mironov, 2017.
NOISE, BATCH, EXAMPLES, DELTA = 1.1, 256, 60_000, 1e-5
STEPS = 60 * EXAMPLES // BATCH
PUBLISHED = 3.01


def _gradient(cls=stochastic_gradients.DpSgdStochasticGradient, **fields):
  settings = {
    'l2_norm_clip': 1.0, 'noise_multiplier': NOISE, 'num_examples': EXAMPLES,
  }  # fmt: skip
  return cls(**settings | fields)


def _rdp(order: int, noise: float, rate: float) -> float:
  """Renyi divergence of a step: equation 6 of Mironov et al., 2019."""
  terms = [
    math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
    + (order - k) * math.log1p(-rate) + k * math.log(rate)
    + k * (k - 1) / (2 * noise**2)
    for k in range(order + 1)
  ]  # fmt: skip
  return float(np.logaddexp.reduce(terms)) / (order - 1)


def _epsilon(noise: float, steps: int, *, is_tight: bool) -> float:
  """Epsilon by Mironov, 2017, or by the tighter proposition 12 of Canonne."""
  found = []
  for order in range(2, 65):
    epsilon = steps * _rdp(order, noise, BATCH / EXAMPLES)
    epsilon -= math.log(DELTA) / (order - 1)
    if is_tight:
      epsilon += math.log1p(-1 / order) - math.log(order) / (order - 1)
    found.append(epsilon)
  return min(found)


def test_the_published_value():
  assert _epsilon(NOISE, STEPS, is_tight=False) == pytest.approx(
    PUBLISHED, abs=0.01
  )


def test_epsilon_is_that_of_the_formula_and_below_the_published_one():
  pytest.importorskip('dp_accounting')
  account = privacy.account(_gradient().mechanism(BATCH))
  by_hand = _epsilon(NOISE, STEPS, is_tight=True)
  # Orders between the integers are a little better.
  assert by_hand - 0.01 < account.epsilon(STEPS) <= by_hand < PUBLISHED
  # Here the best order is an integer.
  by_hand = _epsilon(NOISE, 100, is_tight=True)
  assert account.epsilon(100) == pytest.approx(by_hand, rel=1e-9)
  assert account.line(STEPS) == (
    'DP-SGD: epsilon 2.6 at delta 1e-05 after 14062 steps (noise multiplier'
    ' 1.1, sampling probability 0.00427)'
  )


def test_epsilon_is_that_of_dp_accounting_and_not_below_the_exact_one():
  dp_accounting = pytest.importorskip('dp_accounting')
  event = dp_accounting.PoissonSampledDpEvent(
    BATCH / EXAMPLES, dp_accounting.GaussianDpEvent(NOISE)
  )
  account = privacy.account(_gradient().mechanism(BATCH))
  rdp = dp_accounting.rdp.RdpAccountant().compose(event, 500)
  assert account.epsilon(500) == pytest.approx(rdp.get_epsilon(DELTA))
  # Privacy loss distributions are numerically exact.
  exact = dp_accounting.pld.PLDAccountant().compose(event, 500)
  assert exact.get_epsilon(DELTA) < account.epsilon(500)


def test_the_mean_of_a_microbatch_may_turn_to_its_opposite():
  micro = stochastic_gradients.MicrobatchDpSgdStochasticGradient
  copies = stochastic_gradients.AugMulDpSgdStochasticGradient
  by_class = {
    (cls, size): _gradient(cls, microbatch_size=size).mechanism(BATCH)
    for cls in (micro, copies)
    for size in (1, 4)
  }
  noises = [mechanism.noise_multiplier for mechanism in by_class.values()]
  assert noises == [NOISE, NOISE / 2, NOISE, NOISE]


def test_without_noise_or_number_of_examples_nothing_is_known(caplog):
  for gradient, count in (
    (_gradient(noise_multiplier=0.0), 0),
    (_gradient(num_examples=None), 1),
    (stochastic_gradients.StandardGradient(), 0),
  ):
    caplog.clear()
    account = privacy.account(gradient.mechanism(BATCH))
    assert account.epsilon(5) is None and account.line(5) == ''
    assert len(caplog.records) == count
  assert _gradient(num_examples=BATCH).mechanism(BATCH)
  with pytest.raises(ValueError, match='got 255 for batches of 256'):
    _gradient(num_examples=255).mechanism(BATCH)


def test_the_log_says_what_to_install(monkeypatch, caplog):
  monkeypatch.setitem(sys.modules, 'dp_accounting', None)
  account = privacy.account(_gradient().mechanism(BATCH))
  assert account.epsilon(5) is None and account.line(5) == ''
  [record] = caplog.records
  assert 'pip install "pax-jax[dp]"' in record.getMessage()
