# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Every schedule against numbers worked by hand."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import schedules

_RAMP = {'warmup_steps': 10, 'decay_start': 20, 'decay_end': 40, 'max': 2.0}
_ROOT = 1 / math.sqrt(2)

# (config, {step: value})
CASES = {
  'constant': (schedules.Constant.config(value=3.0), {0: 3.0, 10**6: 3.0}),
  'linear': (
    schedules.Linear.config(start=(10, 1.0), limit=(20, 3.0)),
    {0: 1.0, 10: 1.0, 15: 2.0, 20: 3.0, 99: 3.0},
  ),
  'polynomial_from_start': (
    schedules.Polynomial.config(power=2, start=(0, 1.0), limit=(10, 0.0)),
    {0: 1.0, 5: 0.75, 10: 0.0},
  ),
  'polynomial_from_limit': (
    schedules.Polynomial.config(
      power=2, start=(0, 1.0), limit=(10, 0.0), origin='limit'
    ),
    {0: 1.0, 5: 0.25, 10: 0.0},
  ),
  'exponential': (
    schedules.Exponential.config(start=(0, 8.0), limit=(3, 1.0)),
    {0: 8.0, 1: 4.0, 2: 2.0, 3: 1.0, 4: 1.0},
  ),
  'cosine': (
    schedules.Cosine.config(initial_value=3.0, final_value=1.0, total_steps=8),
    {0: 3.0, 2: 2.0 + _ROOT, 4: 2.0, 6: 2.0 - _ROOT, 8: 1.0, 80: 1.0},
  ),
  'delayed_cosine': (
    schedules.DelayedCosine.config(start=(10, 3.0), limit=(18, 1.0)),
    {0: 3.0, 10: 3.0, 12: 2.0 + _ROOT, 14: 2.0, 18: 1.0},
  ),
  'rampup_polynomial': (
    schedules.LinearRampupPolynomialDecay.config(
      power=2, min_ratio=0.2, **_RAMP
    ),
    {0: 0.0, 5: 1.0, 10: 2.0, 20: 2.0, 30: 1.6, 40: 0.4, 50: 0.4},
  ),
  'rampup_cosine': (
    schedules.LinearRampupCosineDecay.config(min_ratio=0.5, **_RAMP),
    {0: 0.0, 5: 1.0, 15: 2.0, 25: 1.5 + _ROOT / 2, 30: 1.5, 40: 1.0, 50: 1.0},
  ),
  'rampup_cosine_delayed': (
    schedules.LinearRampupCosineDecay.config(
      start_step=100, min_ratio=0.5, **_RAMP
    ),
    {0: 1.0, 99: 1.0, 100: 0.0, 105: 1.0, 130: 1.5, 140: 1.0},
  ),
  'rampup_exponential': (
    schedules.LinearRampupExponentialDecay.config(min_ratio=0.01, **_RAMP),
    {0: 0.0, 1: 0.2, 10: 2.0, 20: 2.0, 30: 0.2, 40: 0.02, 99: 0.02},
  ),
  'rampup_exponential_without_rampup': (
    schedules.LinearRampupExponentialDecay.config(
      decay_start=1, decay_end=3, min_ratio=0.25, max=1.0
    ),
    {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.25},
  ),
  'rampup_sqrt': (
    schedules.LinearRampupSqrtDecay.config(peak=2.0, warmup_steps=4),
    {0: 0.5, 1: 0.5, 2: 1.0, 4: 2.0, 16: 1.0, 64: 0.5},
  ),
  'rampup_piecewise': (
    schedules.LinearRampupPiecewiseConstant.config(
      boundaries=[4, 10, 20], values=[1.0, 0.1, 0.01]
    ),
    {0: 0.0, 1: 0.25, 4: 1.0, 9: 1.0, 10: 0.1, 19: 0.1, 20: 0.01, 99: 0.01},
  ),
  'piecewise_constant': (
    schedules.PiecewiseConstant.config(
      boundaries=[10, 20], values=[1.0, 0.5, 0.1]
    ),
    {0: 1.0, 9: 1.0, 10: 0.5, 19: 0.5, 20: 0.1},
  ),
  'transformer': (
    schedules.Transformer.config(warmup_steps=4, model_dim=16),
    {0: 0.25 / 8, 3: 0.125, 15: 0.0625},
  ),
  'transformer_replicas_end': (
    schedules.Transformer.config(
      warmup_steps=2, worker_replicas=2, model_dim=16, decay_end=15
    ),
    {0: 0.25 / 8, 15: 0.0625, 10**6: 0.0625},
  ),
  'transformer_without_rampup': (
    schedules.Transformer.config(warmup_steps=0, model_dim=16),
    {0: 0.25, 3: 0.125, 15: 0.0625},
  ),
  'sqrt_decay': (
    schedules.SqrtDecay.config(decay_start=4, multiplier=2.0, offset=10.0),
    {0: 1.0, 14: 1.0, 26: 0.5},
  ),
  'piecewise_schedule': (
    schedules.PiecewiseSchedule.config(
      boundaries=[10],
      schedules=[
        schedules.Constant.config(value=7.0),
        schedules.Linear.config(start=(0, 1.0), limit=(4, 0.0)),
      ],
    ),
    {0: 7.0, 9: 7.0, 10: 1.0, 12: 0.5, 14: 0.0},
  ),
  'cycle': (
    schedules.CycleSchedule.config(
      steps=[3, 2],
      schedules=[
        schedules.Constant.config(value=1.0),
        schedules.Linear.config(start=(0, 0.0), limit=(10, 10.0)),
      ],
    ),
    {0: 1.0, 2: 1.0, 3: 3.0, 4: 4.0, 5: 1.0, 8: 8.0, 10: 1.0},
  ),
  # Odd steps above 2**24 are not float32 numbers.
  'cycle_of_odd_and_even_steps': (
    schedules.CycleSchedule.config(
      steps=[1, 1],
      schedules=[
        schedules.Constant.config(value=1.0),
        schedules.Constant.config(value=2.0),
      ],
    ),
    {0: 1.0, 1: 2.0, 2**24: 1.0, 2**24 + 1: 2.0, 2**30 + 3: 2.0},
  ),
  'odd_and_even_steps_after_a_boundary': (
    schedules.PiecewiseSchedule.config(
      boundaries=[10],
      schedules=[
        schedules.Constant.config(value=5.0),
        schedules.CycleSchedule.config(
          steps=[1, 1],
          schedules=[
            schedules.Constant.config(value=1.0),
            schedules.Constant.config(value=2.0),
          ],
        ),
      ],
    ),
    {0: 5.0, 9: 5.0, 10: 1.0, 11: 2.0, 2**24: 1.0, 2**24 + 1: 2.0},
  ),
  'continuous': (
    schedules.ContinuousSchedule.config(
      initial_value=4.0, start_step=100, half_life_steps=10, min=0.125
    ),
    {0: 4.0, 100: 4.0, 110: 2.0, 115: 2 * _ROOT, 120: 1.0, 130: 0.5, 900: 0.5},
  ),
}


@pytest.mark.parametrize('name', CASES)
def test_values(name):
  config, expected = CASES[name]
  schedule = config.Instantiate()
  got = [schedule.value_at(step) for step in expected]
  assert all(v.shape == () and v.dtype == jnp.float32 for v in got)
  np.testing.assert_allclose(got, list(expected.values()), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize('name', CASES)
def test_values_of_a_traced_unsigned_step(name):
  config, expected = CASES[name]
  value_at = jax.jit(jax.vmap(config.Instantiate().value_at))
  got = value_at(jnp.array(list(expected), jnp.uint32))
  np.testing.assert_allclose(got, list(expected.values()), rtol=2e-6, atol=1e-6)


def test_every_schedule_has_a_case():
  tested = {config.cls.__name__ for config, _ in CASES.values()}
  assert tested == set(schedules.__all__) - {'BaseSchedule'}


@pytest.mark.parametrize(
  'config, message',
  [
    (schedules.Linear.config(start=(5, 0.0), limit=(5, 1.0)), 'start before'),
    (schedules.Linear.config(start=(5,)), r'must be \(step, value\)'),
    (schedules.Polynomial.config(origin='end'), "'start' or 'limit'"),
    (schedules.Exponential.config(start=(0, 0.0)), 'positive values'),
    (schedules.Cosine.config(), 'total_steps must be positive'),
    (schedules.LinearRampupExponentialDecay.config(), 'max must be positive'),
    (
      schedules.LinearRampupCosineDecay.config(
        max=1.0, warmup_steps=9, decay_start=8, decay_end=10
      ),
      'warmup_steps <= decay_start < decay_end, got 9, 8, 10',
    ),
    (
      schedules.LinearRampupPolynomialDecay.config(max=1.0, decay_start=8),
      'decay_start < decay_end, got 0, 8, 0',
    ),
    (
      schedules.LinearRampupExponentialDecay.config(max=1.0),
      'decay_start < decay_end, got 0, 0, 0',
    ),
    (
      schedules.LinearRampupExponentialDecay.config(min_ratio=0.0, **_RAMP),
      'min_ratio must be positive',
    ),
    (
      schedules.PiecewiseConstant.config(boundaries=[1], values=[1.0]),
      'must have 2 entries',
    ),
    (
      schedules.PiecewiseConstant.config(
        boundaries=[2, 1], values=[1.0, 2.0, 3.0]
      ),
      'must be sorted',
    ),
    (schedules.PiecewiseConstant.config(), 'needs boundaries and values'),
    (
      schedules.LinearRampupPiecewiseConstant.config(
        boundaries=[0, 1], values=[1.0, 2.0]
      ),
      'positive step',
    ),
    (schedules.CycleSchedule.config(schedules=[], steps=[]), 'positive'),
    (schedules.SqrtDecay.config(decay_start=0), 'must be positive'),
    (schedules.ContinuousSchedule.config(half_life_steps=0), 'positive'),
    (schedules.LinearRampupSqrtDecay.config(warmup_steps=0), 'positive'),
  ],
)
def test_errors_name_what_is_wrong(config, message):
  with pytest.raises(ValueError, match=message):
    config.Instantiate()


@pytest.mark.parametrize('step', [0, 3, 5, 8, 20])
def test_parts_of_schedules(step):
  exponential = schedules.Exponential.config(
    start=(2, 4.0), limit=(10, 0.5)
  ).Instantiate()
  np.testing.assert_allclose(
    jnp.exp(exponential.linear.value_at(step)),
    exponential.value_at(step),
    rtol=1e-6,
  )
  cosine = schedules.DelayedCosine.config(
    start=(2, 4.0), limit=(10, 0.5)
  ).Instantiate()
  wave = (1 + jnp.cos(cosine.linear.value_at(step))) / 2
  np.testing.assert_allclose(
    cosine.min + (cosine.max - cosine.min) * wave,
    cosine.value_at(step),
    rtol=1e-6,
  )
  continuous = schedules.ContinuousSchedule.config(
    initial_value=2.0, start_step=4, half_life_steps=3
  ).Instantiate()
  np.testing.assert_allclose(
    2.0 * continuous.exp.value_at(step), continuous.value_at(step), rtol=1e-6
  )
  constants = schedules.LinearRampupPiecewiseConstant.config(
    boundaries=[4, 8], values=[2.0, 1.0]
  ).Instantiate()
  part = (
    constants.p0.value_at(step) if step < 4 else constants.p1.value_at(step - 4)
  )
  np.testing.assert_allclose(part, constants.value_at(step), rtol=1e-6)
