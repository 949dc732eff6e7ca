# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Residual networks: blocks against numpy, presets, invalid fields."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, convolutions, resnets
from tests.praxis.layers.convolutions.numpy_conv import convolve, same_padding
from tests.praxis.layers.running import build, jit, normal, run, shapes
from tests.testing import nightly

_MUTABLE = [base_layer.NON_TRAINABLE]


def _relu(x):
  return np.maximum(x, 0)


def _conv(x, params, stride=1):
  """Convolution and batch normalization."""
  w = np.asarray(params['w'])
  y = convolve(x, w, (stride, stride), (1, 1), same_padding(w.shape[:2]))
  y = (y - y.mean((0, 1, 2))) / np.sqrt(y.var((0, 1, 2)) + 1e-3)
  bn = params['bn']
  return y * (1 + np.asarray(bn['gamma'])) + np.asarray(bn['beta'])


def _bottleneck(x, p, stride):
  y = _relu(_conv(x, p['body_0']))
  y = _conv(_relu(_conv(y, p['body_1'], stride)), p['body_2'])
  return _relu(y + (_conv(x, p['shortcut'], stride) if 'shortcut' in p else x))


def _basic(x, p, stride):
  y = _conv(_relu(_conv(x, p['body_0'], stride)), p['body_1'])
  return _relu(y + (_conv(x, p['shortcut'], stride) if 'shortcut' in p else x))


@pytest.mark.parametrize(
  ('cls', 'reference', 'dims', 'stride'),
  [
    (resnets.ResNetBlock, _bottleneck, (4, 8), 2),
    (resnets.ResNetBasicBlock, _basic, (4, 4), 1),
    *nightly.cases(
      (resnets.ResNetBlock, _bottleneck, (4, 4), 1),
      (resnets.ResNetBasicBlock, _basic, (4, 8), 2),
    ),
  ],
)
def test_blocks(cls, reference, dims, stride):
  x = normal(2, 4, 4, 4)
  cfg = cls.config(input_dim=dims[0], output_dim=dims[1], stride=stride)
  layer, variables = build(cfg, x)
  params = variables['params']
  assert ('shortcut' in params) == (stride == 2)
  got, _ = run(layer, variables, x, mutable=_MUTABLE)
  np.testing.assert_allclose(got, reference(x, params, stride), atol=1e-4)


def test_block_gradient():
  x, mark = normal(1, 3, 3, 4), normal(1, 3, 3, 4, seed=2)
  # A smooth activation makes finite differences accurate.
  cfg = resnets.ResNetBasicBlock.config(
    input_dim=4,
    output_dim=4,
    kernel_size=1,
    activation_tpl=pax_fiddle.Config(activations.Tanh),
  )
  layer, variables = build(cfg, x)

  def reference(x):
    p = variables['params']
    y = _conv(np.tanh(_conv(x, p['body_0'])), p['body_1'])
    return np.sum(np.tanh(y + x) * np.asarray(mark))

  loss = lambda x: jnp.sum(
    layer.apply(variables, x, mutable=_MUTABLE)[0] * mark
  )
  got = jit(jax.grad(loss))(x)
  x = np.asarray(x, np.float64)
  for at in [(0, 0, 0, 0), (0, 1, 2, 3), (0, 2, 1, 1)]:
    step = np.zeros(x.shape)
    step[at] = 1e-5
    want = (reference(x + step) - reference(x - step)) / 2e-5
    np.testing.assert_allclose(got[at], want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize('cls', [resnets.ResNetBlock, resnets.ResNetBasicBlock])
def test_residual_that_starts_at_zero(cls):
  x = normal(2, 3, 3, 4)
  cfg = cls.config(input_dim=4, output_dim=4, zero_init_residual=True)
  layer = cfg.set(name='layer').Instantiate()
  variables = jit(layer.init)(jax.random.key(0), x)
  got, _ = run(layer, variables, x, mutable=_MUTABLE)
  np.testing.assert_allclose(got, _relu(np.asarray(x)), atol=1e-6)


def test_droppath_passes_the_convolutions_by():
  x = normal(64, 2, 2, 4)
  cfg = resnets.ResNetBlock.config(
    input_dim=4, output_dim=4, residual_droppath_prob=0.5
  )
  layer, variables = build(cfg, x)
  apply = jit(
    lambda v, x: layer.apply(
      v, x, mutable=_MUTABLE, rngs={base_layer.RANDOM: jax.random.key(3)}
    )[0]
  )
  same_as_input = np.all(
    np.isclose(apply(variables, x), _relu(np.asarray(x))), axis=(1, 2, 3)
  )
  assert 10 < same_as_input.sum() < 54


def test_network():
  x = normal(2, 8, 8, 3)
  cfg = resnets.ResNet.config(
    strides=[1, 2],
    channels=[8, 16],
    blocks=[1, 2],
    kernels=[3, 3],
    entryflow_conv_kernel=(3, 3, 3),
    return_block_features=True,
  )
  layer, variables = build(cfg, x)
  params = variables['params']
  features, _ = run(layer, variables, x, mutable=_MUTABLE)
  assert {k: v.shape for k, v in features.items()} == {
    2: (2, 2, 2, 8),
    3: (2, 1, 1, 16),
  }
  y = _relu(_conv(x, params['entryflow_conv'], 2))
  # Windows start at 0 and 2; the last one exceeds the input.
  pooled = np.stack(
    [[y[:, i : i + 3, j : j + 3].max((1, 2)) for j in (0, 2)] for i in (0, 2)]
  ).transpose(2, 0, 1, 3)
  y = _bottleneck(pooled, params['stage_0_block_0'], 1)
  np.testing.assert_allclose(features[2], y, atol=1e-3)
  mean = resnets.ResNet.config(
    **{
      name: getattr(cfg, name)
      for name in ('strides', 'channels', 'blocks', 'kernels')
    }
    | {'entryflow_conv_kernel': (3, 3, 3)}
  )
  layer = mean.set(name='layer').Instantiate()
  got, _ = run(layer, variables, x, mutable=_MUTABLE)
  want = np.asarray(features[3]).mean((1, 2))
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_small_preset_in_bfloat16():
  x = normal(2, 8, 8, 3)
  cfg = resnets.ResNet.HParamsResNet5().set(fprop_dtype=jnp.bfloat16)
  layer, variables = build(cfg, x)
  got = run(layer, variables, x, do_eval=True)
  assert got.shape == (2, 16) and got.dtype == jnp.bfloat16
  assert shapes(variables)['entryflow_conv/w'] == (7, 7, 3, 4)
  assert shapes(variables)['stage_0_block_0/body_1/w'] == (1, 1, 4, 4)


@pytest.mark.parametrize(
  'layers, blocks, basic',
  [
    (18, (2, 2, 2, 2), True),
    (34, (3, 4, 6, 3), True),
    (50, (3, 4, 6, 3), False),
    (56, (3, 3, 9, 3), False),
    (83, (3, 3, 18, 3), False),
    (101, (3, 4, 23, 3), False),
    (152, (3, 8, 36, 3), False),
  ],
)
def test_presets(layers, blocks, basic):
  cfg = getattr(resnets.ResNet, f'HParamsResNet{layers}')()
  assert tuple(cfg.blocks) == blocks
  width = (64, 128, 256, 512) if basic else (256, 512, 1024, 2048)
  assert tuple(cfg.channels) == width
  block = resnets.ResNetBasicBlock if basic else resnets.ResNetBlock
  assert cfg.block_params.cls is block


@pytest.mark.nightly
def test_parameters_of_resnet_50():
  cfg = resnets.ResNet.HParamsResNet50().set(name='net')
  tree = cfg.Instantiate().abstract_init_with_metadata(
    jnp.zeros([1, 32, 32, 3])
  )
  count = sum(np.prod(w.shape) for w in jax.tree.leaves(tree['params']))
  # He et al.: 25,557,032 with a classifier of 2048 * 1000 + 1000.
  assert count == 25_557_032 - 2_049_000


def test_two_networks_share_no_configuration():
  one, other = resnets.ResNet.config(), resnets.ResNet.config()
  one.conv_params.batch_norm_tpl.decay = 0.5
  assert other.conv_params.batch_norm_tpl.decay == 0.9


@pytest.mark.parametrize(
  'cfg, message',
  [
    (resnets.ResNet.config(blocks=[1]), 'must be equally long'),
    (resnets.ResNetBlock.config(output_dim=4), 'needs input_dim > 0'),
    (
      resnets.ResNetBlock.config(input_dim=4, output_dim=6),
      'must be a multiple of 4',
    ),
    (
      resnets.ResNetBlock.config(
        input_dim=4,
        output_dim=4,
        zero_init_residual=True,
        conv_params=convolutions.ConvBNAct.config(batch_norm_tpl=None),
      ),
      'zero_init_residual=True needs batch',
    ),
  ],
)
def test_bad_settings(cfg, message):
  with pytest.raises(ValueError, match=message):
    build(cfg, normal(1, 4, 4, 4))
