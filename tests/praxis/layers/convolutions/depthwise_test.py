# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Depthwise convolutions and the convolution module of the Conformer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import convolutions, normalizations
from tests.praxis.layers.running import build, jit, normal, run

_PADDINGS = jnp.asarray([[0.0] * 6, [0, 0, 0, 0, 1, 1]])
_MUTABLE = [base_layer.NON_TRAINABLE]


def _convolve(x, w, before, dilation=1):
  """Depthwise convolution with `before` zeros of left padding."""
  x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
  batch, length, channels = x.shape
  multiplier = w.shape[-1] // channels
  out = np.zeros((batch, length, w.shape[-1]))
  for t in range(length):
    for k in range(w.shape[0]):
      at = t - before + k * dilation
      if 0 <= at < length:
        out[:, t] += np.repeat(x[:, at], multiplier, axis=-1) * w[k, 0]
  return out


def _masked(x):
  return np.asarray(x) * (1 - np.asarray(_PADDINGS))[..., None]


@pytest.mark.parametrize(
  'fields, before',
  [
    ({}, 1),
    ({'filter_shape': (4, 3, 1)}, 1),  # the odd zero is on the right
    ({'is_causal': True, 'rhs_dilation_rate': 2}, 4),
    ({'bias': True, 'use_2d_conv_weight_shape': True}, 1),
  ],
)
def test_depthwise_conv(fields, before):
  x = normal(2, 6, 3)
  cfg = convolutions.DepthwiseConv1D.config(
    **{'filter_shape': (3, 3, 2)} | fields
  )
  layer, variables = build(cfg, x, _PADDINGS)
  params, is_2d = variables['params'], 'use_2d_conv_weight_shape' in fields
  assert params['w'].ndim == (4 if is_2d else 3)
  w = params['w'][..., 0] if is_2d else params['w']
  want = _convolve(_masked(x), w, before, fields.get('rhs_dilation_rate', 1))
  want += np.asarray(params.get('b', 0))
  got = run(layer, variables, x, _PADDINGS)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_depthwise_gradient():
  x = normal(2, 6, 3)
  layer, variables = build(
    convolutions.DepthwiseConv1D.config(filter_shape=(3, 3, 1)), x
  )
  mark = normal(2, 6, 3, seed=4)
  loss = lambda v, x: jnp.sum(layer.apply(v, x, _PADDINGS) * mark)
  by_weight, by_input = jit(jax.grad(loss, (0, 1)))(variables, x)
  # The adjoint: correlate the mark with the input, tap by tap.
  mark, masked = np.asarray(mark), np.pad(_masked(x), [(0, 0), (1, 1), (0, 0)])
  want = np.stack([(masked[:, k : k + 6] * mark).sum((0, 1)) for k in range(3)])
  np.testing.assert_allclose(by_weight['params']['w'][:, 0], want, atol=1e-4)
  flipped = variables['params']['w'][::-1]
  want = _masked(_convolve(mark, flipped, 1))
  np.testing.assert_allclose(by_input, want, atol=1e-4)


def test_filter_sharding():
  cfg = convolutions.DepthwiseConv1D.config(
    filter_shape=(3, 4, 1),
    use_2d_conv_weight_shape=True,
    ici_mesh_shape=[1, 1, 1],
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  cfg.weight_split_dims_mapping.him = [None, 'mdl', None]
  layer = cfg.set(name='layer').Instantiate()
  tree = layer.abstract_init_with_metadata(normal(1, 4, 4))
  mapping = tree['params']['w'].tensor_split_dims_mapping
  assert list(mapping) == [None, None, 'mdl', None]


def _reference(x, params, norm):
  """The block in numpy, `norm` in the middle."""
  p = jax.tree.map(lambda v: np.asarray(v, np.float64), params)
  sigmoid = lambda v: 1 / (1 + np.exp(-v))
  linear = lambda name, v: v @ p[name]['linear']['w'] + p[name]['bias']['b']
  x = np.asarray(x, np.float64)
  y = x - x.mean(-1, keepdims=True)
  y = y / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  y = y * (1 + p['ln']['scale']) + p['ln']['bias']
  y = linear('linear_start_act', y) * sigmoid(linear('linear_start_gated', y))
  y = norm(_convolve(_masked(y), p['depthwise_conv1d']['w'], 1))
  return x + linear('linear_end', y * sigmoid(y))


def _batch_norm(params):
  p = jax.tree.map(lambda v: np.asarray(v, np.float64), params['conv_norm'])

  def norm(y):
    valid = y[np.asarray(_PADDINGS) == 0]
    y = (y - valid.mean(0)) / np.sqrt(valid.var(0) + 1e-3)
    return _masked(y * (1 + p['gamma']) + p['beta'])

  return norm


@pytest.mark.parametrize('is_2d', [False, True])
def test_light_conv(is_2d):
  x = normal(2, 6, 4)
  cfg = convolutions.LightConv1D.config(
    input_dims=4, kernel_size=3, use_2d_conv_norm=is_2d
  )
  layer, variables = build(cfg, x, _PADDINGS)
  params = variables['params']
  want = _reference(x, params, _batch_norm(params))
  got, _ = run(layer, variables, x, _PADDINGS, mutable=_MUTABLE)
  np.testing.assert_allclose(got, want, atol=1e-4)


def test_light_conv_gradient():
  x = normal(2, 6, 4)
  cfg = convolutions.LightConv1D.config(input_dims=4, kernel_size=3)
  layer, variables = build(cfg, x, _PADDINGS)
  params, norm = variables['params'], _batch_norm(variables['params'])
  mark = normal(2, 6, 4, seed=5)
  loss = lambda x: jnp.sum(
    layer.apply(variables, x, _PADDINGS, mutable=_MUTABLE)[0] * mark
  )
  got = jit(jax.grad(loss))(x)
  by_hand = lambda x: np.sum(_reference(x, params, norm) * np.asarray(mark))
  x = np.asarray(x, np.float64)
  for at in [(0, 0, 0), (0, 5, 3), (1, 2, 1), (1, 5, 2)]:
    step = np.zeros(x.shape)
    step[at] = 1e-5
    want = (by_hand(x + step) - by_hand(x - step)) / 2e-5
    np.testing.assert_allclose(got[at], want, rtol=1e-3, atol=1e-3)


def test_causal_light_conv_sees_no_later_step():
  x = normal(1, 6, 4)
  cfg = convolutions.LightConv1D.config(
    input_dims=4,
    kernel_size=3,
    is_causal=True,
    use_2d_conv_norm=True,
    fprop_dtype=jnp.bfloat16,
    conv_norm_layer_tpl=pax_fiddle.Config(
      normalizations.GroupNorm, num_groups=2, input_rank=4, cumulative=True
    ),
  )
  both = jnp.concatenate([x, x.at[:, 3:].add(1.0)]).astype(jnp.bfloat16)
  layer, variables = build(cfg, both, _PADDINGS)
  got = run(layer, variables, both, jnp.zeros([2, 6]))
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got[0, :3], got[1, :3])
  assert (got[0, 3:] != got[1, 3:]).any()


@pytest.mark.parametrize(
  'cfg, message',
  [
    (
      convolutions.DepthwiseConv1D.config(filter_shape=(3, 3)),
      'must be three positive numbers',
    ),
    (
      convolutions.DepthwiseConv1D.config(
        filter_shape=(3, 4, 1), rhs_dilation_rate=0
      ),
      'rhs_dilation_rate must be positive',
    ),
    (
      convolutions.DepthwiseConv1D.config(filter_shape=(3, 5, 1)),
      'inputs must have 5 channels',
    ),
    (convolutions.LightConv1D.config(kernel_size=3), 'needs input_dims > 0'),
    (convolutions.LightConv1D.config(input_dims=4), 'needs kernel_size > 0'),
  ],
)
def test_bad_settings(cfg, message):
  with pytest.raises(ValueError, match=message):
    build(cfg, normal(2, 6, 4), _PADDINGS)
