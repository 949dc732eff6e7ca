# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Causal depthwise convolutions against their definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import attentions
from tests.praxis.layers import running


@pytest.mark.parametrize(
  ('conv', 'segmented'),
  [
    (attentions.CausalDepthwiseConv1D, False),
    (attentions.CausalDepthwiseConv1D, True),
    (attentions.BiasedCausalDepthwiseConv1D, True),
  ],
)
def test_causal_convolution(conv, segmented):
  x = np.asarray(running.normal(2, 6, 2, 3))
  pos = np.array([[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4]])
  given = jnp.asarray(pos) if segmented else None
  config = conv.config(kernel_size=3, hidden_dims=[2, 3])
  layer, variables = running.build(config, jnp.asarray(x), 1, given)
  weights = variables['params']
  has_bias = conv is attentions.BiasedCausalDepthwiseConv1D
  assert {k: w.shape for k, w in weights.items()} == {
    f'dconv_{i}': (2, 3) for i in range(3)
  } | ({'bias': (2, 3)} if has_bias else {})
  if not segmented:
    pos = np.tile(np.arange(6), (2, 1))
  want = np.zeros_like(x)
  if has_bias:
    want += np.asarray(weights['bias'])
  for b, t in np.ndindex(2, 6):
    for i in range(min(3, pos[b, t] + 1)):
      want[b, t] += x[b, t - i] * np.asarray(weights[f'dconv_{i}'])
  got = running.jit(lambda x: layer.apply(variables, x, 1, given))(x)
  np.testing.assert_allclose(got, want, atol=1e-6)
  extend = running.jit(
    lambda *args: layer.apply(
      variables, jnp.asarray(x), 1, *args, method='extend_step'
    )
  )
  for t in range(6):
    step = extend(jnp.int32(t), jnp.asarray(pos[:, t]))
    np.testing.assert_allclose(step, want[:, t], atol=1e-6)


def test_causal_convolution_starts_with_half_the_input():
  config = attentions.CausalDepthwiseConv1D.config(kernel_size=4, hidden_dims=1)
  layer = config.clone().set(name='layer').Instantiate()
  x = jnp.zeros((1, 2, 1))
  params = layer.init(jax.random.key(0), x, 1)['params']
  assert [float(params[f'dconv_{i}'][0]) for i in range(4)] == [
    0.5,
    0.125,
    0.125,
    0.125,
  ]


@pytest.mark.parametrize('offset', [0, 2, -1])
def test_shift(offset):
  x = np.arange(1.0, 9.0).reshape(2, 4)
  got = attentions.shift_1d(jnp.asarray(x), offset, 1)
  want = np.zeros_like(x)
  for t in range(4):
    if 0 <= t - offset < 4:
      want[:, t] = x[:, t - offset]
  np.testing.assert_array_equal(got, want)
