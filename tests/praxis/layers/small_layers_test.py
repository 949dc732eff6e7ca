# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Einsum, Sequential, AutoMLSelect, chunks and statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, nested_map
from praxis.layers import (
  chunk,
  einsum,
  linears,
  searchable,
  sequential,
  stats,
)
from tests.praxis.layers import running

Init = base_layer.WeightInit


def test_einsum_is_the_product_with_a_bias():
  cfg = einsum.Einsum.config(
    eqn='...d,dnh->...nh', w_shape=[4, 3, 2], use_bias=True
  )
  cfg.weight_split_dims_mapping.wt = [None, 'mdl', None]
  x = running.normal(2, 5, 4)
  layer, variables = running.build(cfg, x)
  w, b = (np.asarray(variables['params'][k]) for k in 'wb')
  loss = lambda v: jnp.sum(layer.apply(v, x) ** 2)
  value, grads = running.jit(jax.value_and_grad(loss))(variables)
  y = np.tensordot(np.asarray(x), w, 1) + b
  np.testing.assert_allclose(value, np.sum(y**2), rtol=1e-5)
  want = np.einsum('btd,btnh->dnh', np.asarray(x), 2 * y)
  np.testing.assert_allclose(grads['params']['w'], want, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    grads['params']['b'], 2 * y.sum((0, 1)), rtol=1e-4, atol=1e-5
  )
  tree = layer.abstract_init_with_metadata(x)['params']
  assert tree['b'].tensor_split_dims_mapping == ['mdl', None]
  assert (tree['w'].fan_in_axes, tree['w'].fan_out_axes) == ([0], [1, 2])
  low = cfg.clone().set(fprop_dtype=jnp.bfloat16).Instantiate()
  assert low.apply(variables, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize(
  ('settings', 'match'),
  [
    ({'eqn': 'bd->b', 'w_shape': [2]}, "must be 'input,weight->output'"),
    ({'eqn': 'bd,...f->bf', 'w_shape': [2]}, 'must be .input,weight->output'),
    ({'eqn': 'bd,df->bf', 'w_shape': [2]}, 'w_shape must have a size for'),
    (
      {'eqn': 'bd,df->fb', 'w_shape': [2, 3], 'use_bias': True},
      'must be the last of the output',
    ),
  ],
)
def test_einsum_refuses(settings, match):
  with pytest.raises(ValueError, match=match):
    einsum.Einsum.config(**settings).Instantiate().init(
      jax.random.key(0), jnp.ones([2, 2])
    )


def linear(**kwargs):
  return linears.Linear.config(input_dims=2, output_dims=2, **kwargs)


def test_sequential_hands_on_tuples_and_maps():
  cfg = sequential.Sequential.config(
    layers=[
      linear(),
      lambda x: (x, 2.0),
      lambda x, factor: nested_map.NestedMap(a=x * factor, b=1.0),
      lambda a, b: a + b,
    ]
  )
  x = running.normal(3, 2)
  layer, variables = running.build(cfg, x)
  w = np.asarray(variables['params']['layers_0']['w'])
  np.testing.assert_allclose(
    running.run(layer, variables, x), np.asarray(x) @ w * 2 + 1, rtol=1e-5
  )
  with pytest.raises(ValueError, match='must not be empty'):
    sequential.Sequential.config().Instantiate().apply({}, x)


def test_layers_of_sequential_inherit():
  cfg = sequential.Sequential.config(
    layers=[linear()], fprop_dtype=jnp.bfloat16
  )
  assert cfg.Instantiate().layers[0].fprop_dtype == jnp.bfloat16


def test_select_calls_what_the_decision_numbers():
  cfg = searchable.AutoMLSelect.config(
    search_options_tpl=[
      linear(),
      linears.FeedForward.config(input_dims=2, output_dims=2),
    ]
  )
  x = running.normal(3, 2)
  layer = cfg.Instantiate()
  variables = layer.init(jax.random.key(0), x)
  params = variables['params']
  assert sorted(params) == ['search_options_0', 'search_options_1']
  assert variables['non_trainable']['decision'].dtype == jnp.uint8
  apply = running.jit(layer.apply)
  w = np.asarray(params['search_options_0']['w'])
  np.testing.assert_allclose(apply(variables, x), np.asarray(x) @ w, rtol=1e-5)
  other = np.asarray(params['search_options_1']['linear']['w'])
  variables['non_trainable']['decision'] = jnp.uint8(1)
  relu = np.maximum(np.asarray(x) @ other, 0)
  np.testing.assert_allclose(apply(variables, x), relu, rtol=1e-5, atol=1e-6)
  with pytest.raises(AttributeError, match='at least one search option'):
    searchable.AutoMLSelect.config().Instantiate().init(jax.random.key(0), x)


@pytest.mark.parametrize(('length', 'axis'), [(6, 1), (7, 1), (5, 0), (7, -2)])
def test_chunks_and_back(length, axis):
  shape = [2, 3, 4]
  shape[axis] = length
  x = running.normal(*shape)
  chunks = chunk.chunk(x, chunk_size=3, axis=axis)
  assert chunks.shape[0] == -(-length // 3)
  first = jax.lax.slice_in_dim(x, 0, 3, axis=axis)
  np.testing.assert_array_equal(chunks[0], first)
  back = chunk.unchunk(chunks, axis=axis, seqlen=length)
  np.testing.assert_array_equal(back, x)
  whole = chunk.unchunk(chunks, axis=axis)
  assert whole.shape[axis] == 3 * len(chunks) and float(whole.sum()) == (
    pytest.approx(float(x.sum()), abs=1e-5)
  )
  with pytest.raises(ValueError, match='chunk_size must be positive'):
    chunk.chunk(x, chunk_size=0)


def test_statistics_leave_out_padding():
  x = np.array(running.normal(2, 4, 3))
  paddings = np.zeros([2, 4, 1])
  paddings[0, 2:] = paddings[1, 1:] = 1
  kept = np.concatenate([x[0, :2], x[1, :1]])
  x[0, 3] = 1e6
  out = stats.compute_stats(jnp.asarray(x, jnp.float32), jnp.asarray(paddings))
  want = [kept.mean(), kept.std(), np.abs(kept).max()]
  got = [out.mean_v, out.std_v, out.max_v]
  np.testing.assert_allclose(got, want, rtol=1e-5)
  # The same of single numbers that are padding.
  numbers = np.broadcast_to(paddings, x.shape)
  out = stats.compute_stats(jnp.asarray(x, jnp.float32), jnp.asarray(numbers))
  got = [out.mean_v, out.std_v, out.max_v]
  np.testing.assert_allclose(got, want, rtol=1e-5)
  plain = stats.compute_stats(jnp.asarray(kept, jnp.bfloat16))
  assert plain.std_v.dtype == jnp.float32
  np.testing.assert_allclose(plain.mean_v, kept.mean(), atol=1e-2)
  with pytest.raises(ValueError, match='must have the rank of inputs'):
    stats.compute_stats(jnp.asarray(x), jnp.zeros([2, 4]))
