# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Convolutions and their gradients against loops in numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers import convolutions, normalizations
from tests.praxis.layers.convolutions.numpy_conv import convolve, same_padding
from tests.praxis.layers.running import build, jit, normal, run

# (fields, expected padding of inputs [2, 5, 4, 3])
_CASES_2D = {
  'same': ({'filter_shape': (3, 2, 3, 4)}, same_padding((3, 2))),
  'strided': (
    {'filter_shape': (3, 4, 3, 2), 'filter_stride': (2, 3), 'bias': True},
    same_padding((3, 4)),
  ),
  # TensorFlow pads 5 by 1 + 1 for stride 2 and size 3; 4 by 0 + 0 for 2.
  'tf': (
    {
      'filter_shape': (3, 2, 3, 4),
      'filter_stride': (2, 2),
      'tf_equivalent_padding': True,
    },
    [(1, 1), (0, 0)],
  ),
  'valid': (
    {'filter_shape': (3, 2, 3, 4), 'dilations': (2, 1), 'padding': 'VALID'},
    [(0, 0), (0, 0)],
  ),
  'causal': (
    {
      'filter_shape': (3, 2, 3, 4),
      'dilations': (2, 1),
      'is_causal': True,
      'tf_equivalent_padding': True,
    },
    [(4, 0), (0, 1)],
  ),
}


@pytest.mark.parametrize('case', _CASES_2D)
def test_conv2d(case):
  fields, pads = _CASES_2D[case]
  fields = {'filter_stride': (1, 1)} | fields
  x = normal(2, 5, 4, 3)
  layer, variables = build(convolutions.Conv2D.config(**fields), x)
  params = variables['params']
  got = run(layer, variables, x)
  stride, dilations = fields['filter_stride'], fields.get('dilations', (1, 1))
  want = convolve(x, params['w'], stride, dilations, pads)
  np.testing.assert_allclose(got, want + params.get('b', 0), atol=1e-5)


def test_conv3d():
  x = normal(2, 3, 4, 3, 2)
  cfg = convolutions.Conv3D.config(
    filter_shape=(2, 3, 2, 2, 3), filter_stride=(1, 2, 1), bias=True
  )
  layer, variables = build(cfg, x)
  params = variables['params']
  pads = same_padding((2, 3, 2))
  want = convolve(x, params['w'], (1, 2, 1), (1, 1, 1), pads) + params['b']
  np.testing.assert_allclose(run(layer, variables, x), want, atol=1e-5)


def test_causal_conv3d_sees_no_later_frame():
  x = normal(1, 4, 3, 3, 2)
  cfg = convolutions.Conv3D.config(
    filter_shape=(3, 3, 3, 2, 2),
    filter_stride=(1, 1, 1),
    is_causal=True,
    tf_equivalent_padding=True,
  )
  layer, variables = build(cfg, x)
  both = run(layer, variables, jnp.concatenate([x, x.at[:, 2:].add(1.0)]))
  np.testing.assert_array_equal(both[0, :2], both[1, :2])
  assert (both[0, 2:] != both[1, 2:]).all()


def test_depthwise_convolution_keeps_channels_apart():
  x = normal(2, 4, 4, 3)
  cfg = convolutions.Conv2D.HParamsDepthwise(
    kernel_shape=(3, 3),
    in_channels=3,
    channel_multipliers=2,
    filter_stride=(1, 1),
  )
  layer, variables = build(cfg, x)
  w = variables['params']['w']
  assert w.shape == (3, 3, 1, 6)
  want = convolve(x, w, (1, 1), (1, 1), same_padding((3, 3)), groups=3)
  np.testing.assert_allclose(run(layer, variables, x), want, atol=1e-5)


def test_gradients_are_those_of_a_linear_map():
  x = normal(1, 4, 3, 2)
  cfg = convolutions.Conv2D.config(
    filter_shape=(3, 2, 2, 2), filter_stride=(2, 1), bias=True
  )
  layer, variables = build(cfg, x)
  mark = normal(1, 2, 3, 2, seed=3)

  @jit
  def grads(variables, x):
    loss = lambda v, x: jnp.sum(layer.apply(v, x) * mark)
    return jax.grad(loss, (0, 1))(variables, x)

  by_weight, by_input = grads(variables, x)
  loops = lambda w, x: np.sum(
    convolve(x, w, (2, 1), (1, 1), same_padding((3, 2))) * np.asarray(mark)
  )
  w = np.asarray(variables['params']['w'])
  for at in np.ndindex(w.shape):
    unit = np.zeros(w.shape)
    unit[at] = 1.0
    np.testing.assert_allclose(
      by_weight['params']['w'][at], loops(unit, x), atol=1e-4
    )
  for at in np.ndindex(x.shape):
    unit = np.zeros(x.shape)
    unit[at] = 1.0
    np.testing.assert_allclose(by_input[at], loops(w, unit), atol=1e-4)
  np.testing.assert_allclose(
    by_weight['params']['b'], np.sum(mark, axis=(0, 1, 2)), atol=1e-5
  )


def test_bfloat16_computes_in_bfloat16():
  x = normal(1, 4, 4, 2)
  cfg = convolutions.Conv2D.config(
    filter_shape=(3, 3, 2, 2), filter_stride=(1, 1), fprop_dtype=jnp.bfloat16
  )
  layer, variables = build(cfg, x)
  got = run(layer, variables, x)
  assert got.dtype == jnp.bfloat16
  rounded = lambda x: np.asarray(x.astype(jnp.bfloat16), np.float64)
  w = rounded(variables['params']['w'])
  want = convolve(rounded(x), w, (1, 1), (1, 1), same_padding((3, 3)))
  got = np.asarray(got, np.float64)
  np.testing.assert_allclose(got, want, rtol=0.02, atol=0.02)


def test_filter_is_normalized_first():
  x = normal(1, 3, 3, 2)
  cfg = convolutions.Conv2D.config(
    filter_shape=(2, 2, 2, 3),
    filter_stride=(1, 1),
    weight_norm_tpl=pax_fiddle.Config(normalizations.WeightNormL2),
  )
  layer, variables = build(cfg, x)
  params = variables['params']
  w = np.asarray(params['w'], np.float64)
  w /= np.sqrt((w**2).sum((0, 1, 2)))
  w *= 1 + np.asarray(params['weight_norm']['g'])
  want = convolve(x, w, (1, 1), (1, 1), same_padding((2, 2)))
  np.testing.assert_allclose(run(layer, variables, x), want, atol=1e-5)


def test_causal_padding():
  assert convolutions.causal_padding(3, 2) == 4
  assert convolutions.causal_padding(1, 5) == 0


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'filter_shape': (3, 3, 2)}, 'filter_shape .* must have 4 positive'),
    ({'filter_stride': (1, 0)}, 'filter_stride .* must have 2 positive'),
    ({'dilations': (1, 1, 1)}, 'dilations .* must have 2 positive'),
    ({'padding': 'same'}, "must be 'SAME' or 'VALID', got 'same'"),
    ({'is_causal': True}, 'needs tf_equivalent_padding=True'),
    (
      {
        'is_causal': True,
        'tf_equivalent_padding': True,
        'padding': 'VALID',
      },
      "needs padding='SAME'",
    ),
    ({'filter_shape': (3, 3, 3, 4)}, 'must be a multiple of 3'),
    ({'filter_shape': (3, 3, 1, 3)}, 'must be a multiple of 2'),
  ],
)
def test_bad_settings(fields, message):
  good = {'filter_shape': (3, 3, 2, 4), 'filter_stride': (1, 1)}
  cfg = convolutions.Conv2D.config(**good | fields)
  with pytest.raises(ValueError, match=message):
    build(cfg, normal(1, 4, 4, 2))


def test_bad_ranks_and_depthwise_settings():
  cfg = convolutions.Conv2D.config(
    filter_shape=(3, 3, 2, 4), filter_stride=(1, 1)
  )
  with pytest.raises(ValueError, match='must have rank 4'):
    build(cfg, normal(4, 4, 2))
  with pytest.raises(ValueError, match='kernel_shape of Conv3D must have 3'):
    convolutions.Conv3D.HParamsDepthwise(kernel_shape=(3, 3), in_channels=2)
  with pytest.raises(ValueError, match='HParamsDepthwise derives filter_shape'):
    convolutions.Conv2D.HParamsDepthwise(
      kernel_shape=(3, 3), in_channels=2, filter_shape=(3, 3, 1, 2)
    )
