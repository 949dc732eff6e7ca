# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Vanilla networks against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import vanillanets
from tests.praxis.layers.convolutions.numpy_conv import convolve, same_padding
from tests.praxis.layers.running import build, jit, normal, run


def _lrelu(x, slope=0.4):
  return np.sqrt(2 / (1 + slope**2)) * np.where(x > 0, x, slope * x)


def _conv(x, params, stride=1):
  w = np.asarray(params['w'])
  y = convolve(x, w, (stride, stride), (1, 1), same_padding(w.shape[:2]))
  return _lrelu(y + np.asarray(params['b']))


def test_activation_keeps_the_mean_square():
  x = jax.random.normal(jax.random.key(0), (20_000,))
  for slope in (0.0, 0.4):
    got = vanillanets.tailored_lrelu(slope, x)
    np.testing.assert_allclose(got, _lrelu(np.asarray(x), slope), rtol=1e-5)
    np.testing.assert_allclose(np.mean(got**2), 1.0, atol=0.05)


def test_block_and_its_gradient():
  x, mark = normal(1, 4, 4, 4), normal(1, 2, 2, 8, seed=2)
  cfg = vanillanets.VanillaBlock.config(input_dim=4, output_dim=8, stride=2)
  layer, variables = build(cfg, x)
  p = variables['params']
  reference = lambda x: _conv(
    _conv(_conv(x, p['body_0']), p['body_1'], 2), p['body_2']
  )
  value = lambda x: jnp.sum(layer.apply(variables, x) * mark)
  got, grad = jit(lambda x: (layer.apply(variables, x), jax.grad(value)(x)))(x)
  x = np.asarray(x, np.float64)
  np.testing.assert_allclose(got, reference(x), atol=1e-4)
  for at in [(0, 0, 0, 0), (0, 1, 2, 3)]:
    step = np.zeros(x.shape)
    step[at] = 1e-6
    change = reference(x + step) - reference(x - step)
    want = np.sum(change * np.asarray(mark)) / 2e-6
    np.testing.assert_allclose(grad[at], want, atol=1e-3)


def test_network():
  x = normal(2, 8, 8, 3)
  cfg = vanillanets.VanillaNet.HParamsVanillaNet5().set(
    entryflow_conv_kernel=(3, 3), fprop_dtype=jnp.bfloat16
  )
  layer, variables = build(cfg, x)
  assert run(layer, variables, x).dtype == jnp.bfloat16
  layer = cfg.clone().set(fprop_dtype=jnp.float32).Instantiate()
  p = variables['params']
  y = _conv(x, p['entryflow_conv'], 2)
  y = np.stack(
    [[y[:, i : i + 3, j : j + 3].max((1, 2)) for j in (0, 2)] for i in (0, 2)]
  ).transpose(2, 0, 1, 3)
  for name in ('body_0', 'body_1', 'body_2'):
    y = _conv(y, p['stage_0_block_0'][name])
  np.testing.assert_allclose(
    run(layer, variables, x), y.mean((1, 2)), atol=1e-4
  )


def test_presets_and_bad_settings():
  blocks = lambda layers: tuple(
    getattr(vanillanets.VanillaNet, f'HParamsVanillaNet{layers}')().blocks
  )
  assert blocks(50) == (3, 4, 6, 3)
  assert blocks(101) == (3, 4, 23, 3)
  assert blocks(152) == (3, 8, 36, 3)
  with pytest.raises(ValueError, match='must be equally long'):
    build(vanillanets.VanillaNet.config(kernels=[3]), normal(1, 8, 8, 3))
  with pytest.raises(ValueError, match='output_dim >= 4'):
    build(vanillanets.VanillaBlock.config(input_dim=3), normal(1, 8, 8, 3))
