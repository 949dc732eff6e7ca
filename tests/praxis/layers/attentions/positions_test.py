# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Query scales, relative biases and causal convolutions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import attentions
from tests.praxis.layers import running


def test_per_dim_scale_starts_at_one_over_root_dim():
  x = running.normal(2, 3, 4)
  config = attentions.PerDimScale.config(dim=4)
  layer = config.clone().set(name='layer').Instantiate()
  variables = layer.init({'params': jax.random.key(0)}, x)
  np.testing.assert_allclose(layer.apply(variables, x), x / 2, rtol=1e-6)


def test_per_dim_scale():
  x = running.normal(2, 3, 4)
  layer, variables = running.build(attentions.PerDimScale.config(dim=4), x)
  v = np.asarray(variables['params']['per_dim_scale'])
  want = x * 1.442695041 / 2 * np.log1p(np.exp(v))
  np.testing.assert_allclose(layer.apply(variables, x), want, rtol=1e-5)
  with pytest.raises(ValueError, match='must be dim=4'):
    layer.apply(variables, x[..., :3])


def _bucket(distance, buckets, max_distance, bidirectional):
  """T5's bucket of key minus query position, one number at a time."""
  offset = 0
  if bidirectional:
    buckets //= 2
    offset = buckets if distance > 0 else 0
    distance = abs(distance)
  else:
    distance = max(-distance, 0)
  exact = buckets // 2
  if distance < exact:
    return offset + distance
  ratio = math.log(distance / exact) / math.log(max_distance / exact)
  return offset + min(exact + int(ratio * (buckets - exact)), buckets - 1)


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize('by_length', [False, True])
def test_relative_bias(bidirectional, by_length):
  config = attentions.RelativeBias.config(
    num_heads=3,
    relative_attention_num_buckets=10,
    relative_attention_max_distance=20,
    bidirectional=bidirectional,
    use_length_as_position=by_length,
  )
  queries = jnp.array([[0, 1, 30, 7], [5, 6, 0, 1]])
  keys = jnp.array([[3, 0, 1, 2, 11], [0, 1, 2, 40, 4]])
  layer, variables = running.build(config, queries, keys)
  table = np.asarray(variables['params']['wrb'])
  assert table.shape == (3, 10)
  got = running.run(layer, variables, queries, keys)
  if by_length:
    queries, keys = np.arange(4)[None], np.arange(5)[None]
  want = np.array(
    [
      [
        [_bucket(int(s) - int(t), 10, 20, bidirectional) for s in ks]
        for t in qs
      ]
      for qs, ks in zip(queries, keys, strict=True)
    ]
  )
  np.testing.assert_allclose(got, np.moveaxis(table[:, want], 0, 1))


def test_relative_bias_by_steps():
  config = attentions.RelativeBias.config(
    num_heads=2,
    relative_attention_num_buckets=6,
    relative_attention_max_distance=12,
  )
  pos = jnp.arange(16)[None]
  layer, variables = running.build(config, pos)
  want = running.run(layer, variables, pos)

  @running.jit
  def extend(steps):
    call = lambda *args: layer.apply(variables, 16, *args, method='extend_step')
    return call(), [call(step) for step in steps]

  steps = [0, 5, 15]
  whole, rows = extend(steps)
  np.testing.assert_array_equal(whole, want)
  for step, row in zip(steps, rows, strict=True):
    np.testing.assert_array_equal(row[0, :, 0], want[0, :, step])


def test_relative_bias_starts_gaussian():
  config = attentions.RelativeBias.config(num_heads=8, name='bias')
  declared = config.Instantiate().abstract_init_with_metadata(
    jnp.zeros((1, 4), jnp.int32)
  )['params']['wrb']
  assert declared.init == base_layer.WeightInit.Gaussian((8 * 32) ** -0.5)


@pytest.mark.parametrize('segmented', [False, True])
def test_causal_convolution(segmented):
  x = np.asarray(running.normal(2, 6, 2, 3))
  pos = np.array([[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4]])
  given = jnp.asarray(pos) if segmented else None
  config = attentions.CausalDepthwiseConv1D.config(
    kernel_size=3, hidden_dims=[2, 3]
  )
  layer, variables = running.build(config, jnp.asarray(x), 1, given)
  weights = variables['params']
  assert {k: w.shape for k, w in weights.items()} == {
    f'dconv_{i}': (2, 3) for i in range(3)
  }
  if not segmented:
    pos = np.tile(np.arange(6), (2, 1))
  want = np.zeros_like(x)
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
