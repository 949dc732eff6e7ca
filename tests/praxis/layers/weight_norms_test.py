# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Normalizations of kernels against numpy's norms and singular values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import normalizations
from tests.praxis.layers.running import build, jit, normal, run

_MUTABLE = [base_layer.NON_TRAINABLE]


def _numeric(loss, x):
  """The gradient of a function of a float64 array, by differences."""
  grad = np.zeros(x.shape)
  for at in np.ndindex(x.shape):
    step = np.zeros(x.shape)
    step[at] = 1e-6
    grad[at] = (loss(x + step) - loss(x - step)) / 2e-6
  return grad


def test_weight_norm():
  w, mark = normal(2, 2, 3), normal(2, 2, 3, seed=2)
  layer, variables = build(normalizations.WeightNormL2.config(dim=3), w)
  g = np.asarray(variables['params']['g'], np.float64)
  want = lambda w: (1 + g) * w / np.sqrt((w**2).sum((0, 1)))
  x = np.asarray(w, np.float64)
  np.testing.assert_allclose(run(layer, variables, w), want(x), atol=1e-6)
  grad = jit(jax.grad(lambda w: jnp.sum(layer.apply(variables, w) * mark)))(w)
  by_hand = _numeric(lambda w: np.sum(want(w) * np.asarray(mark)), x)
  np.testing.assert_allclose(grad, by_hand, atol=1e-4)


def _power(w, u, steps):
  for _ in range(steps):
    v = w @ u
    v /= np.linalg.norm(v)
    u = v @ w
    u /= np.linalg.norm(u)
  return v, u


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_spectral_norm(dtype):
  w = normal(2, 2, 3).astype(dtype)
  cfg = normalizations.SpectralNorm.config(
    dim=3, n_power_iteration=2, fprop_dtype=dtype
  )
  layer, variables = build(cfg, w)
  u = np.asarray(variables['non_trainable']['u'], np.float64)
  matrix = np.asarray(w, np.float64).reshape(4, 3)
  v, u = _power(matrix, u, 2)
  got, updated = run(layer, variables, w, mutable=_MUTABLE)
  assert got.dtype == dtype
  exact = dtype == jnp.float32
  np.testing.assert_allclose(
    np.asarray(got, np.float64).reshape(4, 3),
    matrix / (v @ matrix @ u),
    rtol=1e-5 if exact else 0.01,
  )
  np.testing.assert_allclose(
    updated['non_trainable']['u'], u, rtol=1e-5 if exact else 0.02
  )


def test_spectral_norm_reaches_the_largest_singular_value():
  w = normal(5, 3)
  cfg = normalizations.SpectralNorm.config(dim=3, n_power_iteration=60)
  layer, variables = build(cfg, w)
  got, updated = run(layer, variables, w, do_eval=True, mutable=_MUTABLE)
  want = np.asarray(w) / np.linalg.svd(np.asarray(w), compute_uv=False)[0]
  np.testing.assert_allclose(got, want, rtol=1e-4)
  # Eval changes nothing.
  old = variables['non_trainable']
  jax.tree.map(np.testing.assert_array_equal, updated['non_trainable'], old)


def test_spectral_norm_gradient_takes_the_vectors_as_given():
  w, mark = normal(4, 3), np.asarray(normal(4, 3, seed=3), np.float64)
  layer, variables = build(normalizations.SpectralNorm.config(dim=3), w)
  x = np.asarray(w, np.float64)
  u = np.asarray(variables['non_trainable']['u'], np.float64)
  v, u = _power(x, u, 1)
  want = _numeric(lambda w: np.sum(w / (v @ w @ u) * mark), x)
  loss = lambda w: jnp.sum(
    layer.apply(variables, w, mutable=_MUTABLE)[0] * mark
  )
  np.testing.assert_allclose(jit(jax.grad(loss))(w), want, atol=1e-4)


def test_bad_settings():
  with pytest.raises(ValueError, match='n_power_iteration must be at least 1'):
    build(normalizations.SpectralNorm.config(dim=3, n_power_iteration=0), 0)
  with pytest.raises(ValueError, match='needs dim > 0'):
    build(normalizations.WeightNormL2.config(), 0)
