# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Normalizations against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from praxis import base_layer
from praxis.layers import normalizations
from tests.testing.layers import random_variables


def _x(dtype=jnp.float32):
  x = 3.0 * jax.random.normal(jax.random.key(1), (2, 3, 8)) + 1.0
  return x.astype(dtype)


def _layer_norm(x, scale, bias, epsilon=1e-6):
  x = np.asarray(x, np.float64)
  mean = x.mean(-1, keepdims=True)
  var = ((x - mean) ** 2).mean(-1, keepdims=True)
  return (x - mean) / np.sqrt(var + epsilon) * scale + bias


@pytest.mark.parametrize('direct', [True, False])
def test_layer_norm(direct):
  cfg = normalizations.LayerNorm.config(dim=8, direct_scale=direct)
  layer, x = cfg.Instantiate(), _x()
  start = layer.init(jax.random.key(0), x)['params']
  np.testing.assert_array_equal(start['scale'], 1.0 if direct else 0.0)
  np.testing.assert_array_equal(start['bias'], 0.0)
  variables = random_variables(layer, x, scale=1.0)
  scale = np.asarray(variables['params']['scale'])
  want = _layer_norm(
    x, scale if direct else 1 + scale, np.asarray(variables['params']['bias'])
  )
  np.testing.assert_allclose(
    jax.jit(layer.apply)(variables, x), want, atol=1e-5
  )


def test_layer_norm_without_variables():
  cfg = normalizations.LayerNorm.config(dim=8, use_scale=False, use_bias=False)
  layer, x = cfg.Instantiate(), _x()
  assert not jax.tree.leaves(layer.init(jax.random.key(0), x))
  np.testing.assert_allclose(
    layer.apply({}, x), _layer_norm(x, 1, 0), atol=1e-5
  )


def test_layer_norm_in_bfloat16_can_reduce_in_float32():
  x = (100 + _x()).astype(jnp.bfloat16)
  cfg = normalizations.LayerNorm.config(dim=8, fprop_dtype=jnp.bfloat16)
  want = _layer_norm(x, 1, 0)
  errors = []
  for in_fp32 in (True, False):
    layer = cfg.clone().set(reductions_in_fp32=in_fp32).Instantiate()
    y = jax.jit(layer.init_with_output)(jax.random.key(0), x)[0]
    assert y.dtype == jnp.bfloat16
    errors.append(np.abs(np.asarray(y, np.float64) - want).max())
  assert errors[0] < 0.01 < errors[1]


@pytest.mark.parametrize('direct', [True, False])
def test_rms_norm(direct):
  cfg = normalizations.RmsNorm.config(dim=8, direct_scale=direct)
  layer, x = cfg.Instantiate(), _x()
  start = layer.init(jax.random.key(0), x)['params']
  np.testing.assert_array_equal(start['scale'], 1.0 if direct else 0.0)
  variables = random_variables(layer, x, scale=1.0)
  scale = np.asarray(variables['params']['scale'])
  x64 = np.asarray(x, np.float64)
  normed = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6)
  want = normed * (scale if direct else 1 + scale)
  np.testing.assert_allclose(
    jax.jit(layer.apply)(variables, x), want, atol=1e-5
  )


def test_rms_norm_intermediate_dtype():
  x = _x(jnp.bfloat16)
  cfg = normalizations.RmsNorm.config(
    dim=8, fprop_dtype=jnp.bfloat16, intermediate_dtype=jnp.float32
  )
  layer = cfg.Instantiate()
  y = jax.jit(layer.init_with_output)(jax.random.key(0), x)[0]
  assert y.dtype == jnp.bfloat16
  x32 = np.asarray(x, np.float32)
  want = x32 / np.sqrt((x32**2).mean(-1, keepdims=True) + 1e-6)
  # One rounding, of the result.
  np.testing.assert_allclose(np.asarray(y, np.float32), want, rtol=2**-8)


def test_rms_norm_no_scale_and_identity():
  x = _x()
  layer = normalizations.RmsNormNoScale.config(dim=8).Instantiate()
  x64 = np.asarray(x, np.float64)
  want = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6)
  np.testing.assert_allclose(layer.apply({}, x), want, atol=1e-5)
  same = normalizations.IdentityNorm.config(dim=8).Instantiate()
  np.testing.assert_array_equal(same.apply({}, x), x)


def test_who_skips_regularization():
  skips = base_layer.var_skip_lp_regularization
  ln = normalizations.LayerNorm.config(dim=8).Instantiate()
  tree = ln.abstract_init_with_metadata(_x())['params']
  assert skips(tree['scale']) and skips(tree['bias'])
  rms = normalizations.RmsNorm.config(dim=8).Instantiate()
  assert not skips(rms.abstract_init_with_metadata(_x())['params']['scale'])


@pytest.mark.parametrize(
  'cls', [normalizations.LayerNorm, normalizations.RmsNorm]
)
def test_gradients(cls):
  layer, x = cls.config(dim=8).Instantiate(), _x()
  variables = random_variables(layer, x, scale=1.0)
  check_grads(
    jax.jit(layer.apply), (variables, x), order=1, modes=['rev'], rtol=2e-2
  )


def test_dim_is_required():
  with pytest.raises(ValueError, match='LayerNorm .* needs dim > 0'):
    normalizations.LayerNorm.config().Instantiate().init(
      jax.random.key(0), _x()
    )
