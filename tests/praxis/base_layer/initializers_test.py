# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Every WeightInit kind against its moments and bounds."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fiddle.experimental import serialization

from praxis import base_layer
from praxis.base_layer import WeightInit, get_fan_in_fan_out, init_var
from praxis.base_layer.weight_params import WeightHParams

SHAPE = (2, 100, 300)
FAN_IN, FAN_OUT = 200, 600
# Standard deviation of a normal truncated at two sigmas.
TRUNCATED = 0.87962566


def draw(init: WeightInit, shape=SHAPE, dtype=jnp.float32) -> np.ndarray:
  hparams = WeightHParams(shape=shape, init=init, dtype=dtype)
  return np.asarray(init_var(hparams, jax.random.key(3)))


@pytest.mark.parametrize(
  ('init', 'std'),
  [
    (WeightInit.Gaussian(0.5), 0.5),
    (WeightInit.GaussianSqrtDim(2.0), 2 / math.sqrt(2)),
    (WeightInit.GaussianSqrtFanIn(), 1 / math.sqrt(FAN_IN)),
    (WeightInit.GaussianSqrtFanOut(), 1 / math.sqrt(FAN_OUT)),
    (WeightInit.GaussianSqrtFanAvg(), math.sqrt(2 / (FAN_IN + FAN_OUT))),
    (WeightInit.TruncatedGaussian(0.5), 0.5 * TRUNCATED),
    (WeightInit.TruncatedGaussianSqrtDim(), TRUNCATED / math.sqrt(2)),
    (WeightInit.TruncatedGaussianSqrtFanIn(), TRUNCATED / math.sqrt(FAN_IN)),
    (WeightInit.TruncatedGaussianSqrtFanOut(), TRUNCATED / math.sqrt(FAN_OUT)),
  ],
)
def test_normal_kinds(init, std):
  sample = draw(init)
  np.testing.assert_allclose(sample.std(), std, rtol=0.02)
  np.testing.assert_allclose(sample.mean(), 0, atol=0.02 * std)
  if init.method.startswith('truncated'):
    assert np.abs(sample).max() <= 2 * std / TRUNCATED * (1 + 1e-6)


def test_logarithm_of_a_uniform_number():
  sample = np.exp(draw(WeightInit.LogOfUniform(16.0)))
  assert 0.016 * (1 - 1e-5) <= sample.min() and sample.max() <= 16
  # A number whose logarithm is uniform has the mean 2.3.
  np.testing.assert_allclose(sample.mean(), 8.008, rtol=0.02)
  np.testing.assert_allclose(sample.std(), 15.984 / 12**0.5, rtol=0.02)


def test_inverse_softplus_of_a_log_uniform_number():
  sample = draw(WeightInit.InverseSoftplusOfLogUniform(0.1))
  logarithm = np.log10(np.log1p(np.exp(sample)))
  assert -3.001 <= logarithm.min() and logarithm.max() <= -0.999
  np.testing.assert_allclose(logarithm.mean(), -2, rtol=0.02)
  np.testing.assert_allclose(logarithm.std(), 2 / 12**0.5, rtol=0.02)


@pytest.mark.parametrize(
  ('init', 'bound'),
  [
    (WeightInit.Uniform(0.5), 0.5),
    (WeightInit.Xavier(2.0), 2 * math.sqrt(6 / (FAN_IN + FAN_OUT))),
    (
      WeightInit.XavierWithFixupParams(1.0, 16, 2),
      0.5 * math.sqrt(6 / (FAN_IN + FAN_OUT)),
    ),
    (WeightInit.UniformSqrtDim(), 1 / math.sqrt(2)),
    (WeightInit.UniformSqrtFanAvg(), math.sqrt(6 / (FAN_IN + FAN_OUT))),
    (WeightInit.UniformUnitScaling(), math.sqrt(3 / 200)),
  ],
)
def test_uniform_kinds(init, bound):
  sample = draw(init)
  assert np.abs(sample).max() <= bound
  np.testing.assert_allclose(sample.std(), bound / math.sqrt(3), rtol=0.02)


def test_constants():
  assert (draw(WeightInit.Constant(1.5)) == 1.5).all()
  assert draw(WeightInit.Constant(2), dtype=jnp.int32).dtype == jnp.int32
  with pytest.raises(ValueError, match='needs an int'):
    draw(WeightInit.Constant(1.5), dtype=jnp.int32)


def test_delta_orthogonal_keeps_its_scale():
  square = draw(WeightInit.ScaledDeltaOrthogonal(2.0), (8, 8))
  np.testing.assert_allclose(square @ square.T, 4 * np.eye(8), atol=1e-5)
  kernel = draw(WeightInit.ScaledDeltaOrthogonal(2.0), (3, 3, 4, 4))
  center = kernel[1, 1]
  np.testing.assert_allclose(center @ center.T, 4 * np.eye(4), atol=1e-5)
  assert np.abs(kernel).sum() == pytest.approx(np.abs(center).sum())
  with pytest.raises(ValueError, match='3, 4 or 5 dimensions'):
    base_layer.scaled_delta_orthogonal(jax.random.key(0), (2, 2))


def test_a_tall_orthogonal_matrix_keeps_the_size_of_its_input():
  tall = draw(WeightInit.ScaledDeltaOrthogonal(), (12, 3))
  np.testing.assert_allclose(tall.T @ tall, 4 * np.eye(3), atol=1e-5)


def test_the_scale_that_optimizers_ask_for():
  scale = lambda init: base_layer.var_init_scale(
    WeightHParams(shape=[4, 12], init=init)
  )
  assert scale(WeightInit.Gaussian(0.3)) == 0.3
  assert scale(WeightInit.GaussianSqrtFanIn(0.3)) == pytest.approx(0.15)
  assert scale(WeightInit.Xavier(2.0)) == pytest.approx(2 * math.sqrt(6 / 16))
  with pytest.raises(ValueError, match='needs a Gaussian or uniform'):
    scale(WeightInit.Constant(1.0))


def test_the_default_is_told_from_plain_xavier():
  assert base_layer.is_default_param_init(base_layer.default_param_init())
  assert not base_layer.is_default_param_init(WeightInit.Xavier())


def test_fans():
  assert get_fan_in_fan_out(()) == (None, None)
  assert get_fan_in_fan_out((5,)) == (5, 5)
  assert get_fan_in_fan_out(SHAPE) == (FAN_IN, FAN_OUT)
  assert get_fan_in_fan_out((4, 2, 3), (0,), (1, 2)) == (4, 6)
  with pytest.raises(ValueError, match='give both'):
    get_fan_in_fan_out((4, 2), (0,))


def test_a_config_with_an_initializer_survives_json():
  config = base_layer.BaseLayer.config(params_init=WeightInit.Gaussian(0.5))
  text = serialization.dump_json(config)
  assert serialization.load_json(text).params_init == WeightInit.Gaussian(0.5)


def test_unknown_kind():
  with pytest.raises(ValueError, match="unknown WeightInit method 'magic'"):
    draw(WeightInit('magic', 1.0))


def test_a_weight_without_init_is_refused_by_name():
  hparams = WeightHParams(shape=[2], dtype=jnp.float32)
  with pytest.raises(ValueError, match='layer/w of shape .2,. declares no'):
    base_layer.init_var(hparams, jax.random.key(0), 'layer/w')
