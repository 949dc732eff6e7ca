# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""MobileNetV2: its block against numpy, shapes, invalid fields."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import mobilenet
from tests.praxis.layers.convolutions.numpy_conv import convolve, same_padding
from tests.praxis.layers.running import build, jit, normal, run, shapes

_MUTABLE = [base_layer.NON_TRAINABLE]


def _conv(x, params, stride=1, groups=1):
  w, bn = np.asarray(params['w']), params['bn']
  pads = same_padding(w.shape[:2])
  y = convolve(x, w, (stride, stride), (1, 1), pads, groups)
  y = (y - y.mean((0, 1, 2))) / np.sqrt(y.var((0, 1, 2)) + 1e-3)
  return y * (1 + np.asarray(bn['gamma'])) + np.asarray(bn['beta'])


def _block(x, p):
  relu6 = lambda x: np.clip(x, 0, 6)
  y = relu6(_conv(x, p['layers_0']))
  y = relu6(_conv(y, p['layers_1'], groups=y.shape[-1]))
  return _conv(y, p['layers_2']) + x


def test_block_and_its_gradient():
  x, mark = normal(1, 3, 3, 2), normal(1, 3, 3, 2, seed=2)
  cfg = mobilenet.InvertedResidualBlock.config(
    input_dim=2, output_dim=2, expansion=2
  )
  layer, variables = build(cfg, x)
  apply = lambda x: layer.apply(variables, x, mutable=_MUTABLE)[0]
  loss = lambda x: (jnp.sum(apply(x) * mark), apply(x))
  grad, got = jit(jax.grad(loss, has_aux=True))(x)
  p, x = variables['params']['body'], np.asarray(x, np.float64)
  np.testing.assert_allclose(got, _block(x, p), atol=1e-4)
  for at in [(0, 0, 0, 0), (0, 1, 2, 1)]:
    step = np.zeros(x.shape)
    step[at] = 1e-6
    change = _block(x + step, p) - _block(x - step, p)
    want = np.sum(change * np.asarray(mark)) / 2e-6
    np.testing.assert_allclose(grad[at], want, rtol=2e-3, atol=2e-3)


def test_strided_block_without_expansion_adds_nothing():
  x = normal(1, 4, 4, 2)
  cfg = mobilenet.InvertedResidualBlock.config(
    input_dim=2, output_dim=2, expansion=1, stride=2
  )
  layer, variables = build(cfg, x)
  p = variables['params']['body']
  assert set(p) == {'layers_0', 'layers_1'}
  y = np.clip(_conv(x, p['layers_0'], 2, groups=2), 0, 6)
  got, _ = run(layer, variables, x, mutable=_MUTABLE)
  np.testing.assert_allclose(got, _conv(y, p['layers_1']), atol=1e-4)


def _net(**fields):
  fields = {
    'expansions': [1, 2],
    'strides': [1, 2],
    'channels': [8, 12],
    'output_channels': 16,
    'num_classes': 5,
  } | fields
  return mobilenet.MobileNet.config(**fields)


def test_network_in_bfloat16():
  x = normal(2, 8, 8, 3)
  layer, variables = build(_net(fprop_dtype=jnp.bfloat16), x)
  sizes = shapes(variables)
  assert sizes['body/layers_0/w'] == (3, 3, 3, 32)
  # 12 is rounded to 16.
  assert sizes['body/layers_2/body/layers_2/w'] == (1, 1, 16, 16)
  assert sizes['body/layers_3/w'] == (1, 1, 16, 16)
  assert sizes['body/layers_5/linear/w'] == (16, 5)
  got = run(layer, variables, x, do_eval=True)
  assert got.shape == (2, 5) and got.dtype == jnp.bfloat16


def test_a_wide_network_has_a_wide_classifier():
  cfg = _net(multiplier=1.5).set(name='net')
  tree = cfg.Instantiate().abstract_init_with_metadata(normal(1, 8, 8, 3))
  body = tree['params']['body']
  assert body['layers_0']['w'].shape[-1] == 48
  assert body['layers_3']['w'].shape[-1] == 24
  assert body['layers_5']['linear']['w'].full_shape == (24, 5)


@pytest.mark.nightly
def test_parameters_of_mobilenet_v2():
  cfg = mobilenet.MobileNet.config(num_classes=1000, name='net')
  tree = cfg.Instantiate().abstract_init_with_metadata(
    jnp.zeros([1, 32, 32, 3])
  )
  count = sum(np.prod(w.shape) for w in jax.tree.leaves(tree['params']))
  # Sandler et al.: 3.4M; the known implementations have 3,504,872.
  assert count == 3_504_872


def test_image_without_pooling():
  x = normal(1, 8, 8, 3)
  layer, variables = build(
    _net(output_spatial_pooling_params=None, num_classes=0), x
  )
  assert run(layer, variables, x, do_eval=True).shape == (1, 2, 2, 16)


def test_bad_settings():
  with pytest.raises(ValueError, match='must be equally long'):
    build(_net(strides=[1]), normal(1, 8, 8, 3))
  with pytest.raises(ValueError, match='needs output_dim > 0'):
    build(
      mobilenet.InvertedResidualBlock.config(input_dim=3), normal(1, 8, 8, 3)
    )
