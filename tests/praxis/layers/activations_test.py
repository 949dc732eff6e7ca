# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Activations against their formulas."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import activations

_X = np.linspace(-3, 7, 41, dtype=np.float32)
_CDF = np.vectorize(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))))
_FORMULAS = {
  activations.ReLU: np.maximum(_X, 0),
  activations.SineReLU: np.sin(np.maximum(_X, 0)),
  activations.ReLU6: np.clip(_X, 0, 6),
  activations.SquaredReLU: np.maximum(_X, 0) ** 2,
  activations.CubedReLU: np.maximum(_X, 0) ** 3,
  activations.LeakyReLU: np.where(_X > 0, _X, 0.01 * _X),
  activations.ELU: np.where(_X > 0, _X, np.expm1(np.minimum(_X, 0))),
  activations.Sigmoid: 1 / (1 + np.exp(-_X)),
  activations.Tanh: np.tanh(_X),
  activations.SiLU: _X / (1 + np.exp(-_X)),
  activations.Swish: _X / (1 + np.exp(-_X)),
  activations.Softplus: np.log1p(np.exp(_X)),
  activations.Exp: np.exp(_X),
  activations.Identity: _X,
}


def _apply(cfg, dtype=jnp.float32):
  return cfg.Instantiate().apply({}, jnp.asarray(_X, dtype))


@pytest.mark.parametrize('cls', _FORMULAS, ids=lambda cls: cls.__name__)
def test_formula(cls):
  np.testing.assert_allclose(
    _apply(cls.config()), _FORMULAS[cls], rtol=2e-6, atol=1e-6
  )
  assert _apply(cls.config(), jnp.bfloat16).dtype == jnp.bfloat16


def test_swish_has_a_slope():
  got = _apply(activations.Swish.config(beta=1.702))
  want = _X / (1 + np.exp(-1.702 * _X))
  np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_gelu_is_approximate_unless_told():
  exact = _apply(activations.GELU.config(approximate=False))
  np.testing.assert_allclose(exact, _X * _CDF(_X), atol=1e-6)
  inner = np.sqrt(2 / np.pi) * (_X + 0.044715 * _X**3)
  approximate = _apply(activations.GELU.config())
  np.testing.assert_allclose(
    approximate, 0.5 * _X * (1 + np.tanh(inner)), atol=1e-6
  )


def test_leaky_relu_slope():
  leaky = _apply(activations.LeakyReLU.config(negative_slope=0.5))
  np.testing.assert_allclose(leaky, np.where(_X > 0, _X, 0.5 * _X))


@pytest.mark.parametrize('name', ['ReLU', 'relu', 're_lu', 'RELU'])
def test_found_by_name(name):
  found = activations.BaseActivation.get_subclass_by_name(name)
  assert found is activations.ReLU


def test_unknown_name_lists_the_known():
  with pytest.raises(KeyError, match='found 0.*GELU'):
    activations.BaseActivation.get_subclass_by_name('nope')
