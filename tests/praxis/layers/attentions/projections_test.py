# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Projections to heads and back: products, variables, shardings, fans."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import attentions
from tests.praxis.layers import running

_D, _N, _H = 6, 2, 3


def _config(cls=attentions.AttentionProjection, **kwargs):
  return cls.config(input_dim=_D, num_heads=_N, dim_per_head=_H, **kwargs)


def _metadata(config, x):
  layer = config.clone().set(name='layer').Instantiate()
  return layer.abstract_init_with_metadata(x)['params']


def test_projection_to_heads():
  x = running.normal(2, 4, _D)
  layer, variables = running.build(_config(), x)
  assert running.shapes(variables) == {'w': (_D, _N, _H), 'b': (_N, _H)}
  params = variables['params']
  want = np.einsum('btd,dnh->btnh', x, params['w']) + params['b']
  got = running.run(layer, variables, x)
  np.testing.assert_allclose(got, want, atol=1e-5)
  step = running.run(layer, variables, x[:, 1], method='extend_step')
  np.testing.assert_allclose(step, want[:, 1], atol=1e-5)


@pytest.mark.parametrize('nhd', [False, True])
def test_projection_from_heads(nhd):
  x = running.normal(2, 4, _N, _H)
  config = _config(is_output_projection=True, use_nhd_shape=nhd)
  layer, variables = running.build(config, x)
  shape = (_N, _H, _D) if nhd else (_D, _N, _H)
  assert running.shapes(variables) == {'w': shape, 'b': (_D,)}
  params = variables['params']
  equation = 'btnh,nhd->btd' if nhd else 'btnh,dnh->btd'
  want = np.einsum(equation, x, params['w']) + params['b']
  np.testing.assert_allclose(running.run(layer, variables, x), want, atol=1e-5)


@pytest.mark.parametrize('output, nhd', [(0, 0), (1, 0), (1, 1)])
def test_combined_dims_are_the_same_weight_flattened(output, nhd):
  shape = (2, _N, _H) if output else (2, _D)
  x = running.normal(*shape)
  config = _config(
    is_output_projection=bool(output), use_nhd_shape=bool(nhd), use_bias=False
  )
  layer, variables = running.build(config, x)
  flat = config.clone().set(attention_combine_dims=True, name='flat')
  flat = flat.Instantiate()
  w = variables['params']['w']
  w = w.reshape(_N * _H, _D) if nhd else w.reshape(_D, _N * _H)
  got = flat.apply({'params': {'w': w}}, x)
  np.testing.assert_allclose(got, layer.apply(variables, x), atol=1e-6)
  assert _metadata(flat.hparams, x)['w'].full_shape == w.shape


def test_combined_projection_is_three():
  x = running.normal(2, 4, _D)
  config = _config(attentions.CombinedQKVProjectionLayer)
  layer, variables = running.build(config, x)
  assert running.shapes(variables) == {'w': (3, _D, _N, _H), 'b': (3, _N, _H)}
  params = variables['params']
  for i, got in enumerate(running.run(layer, variables, x)):
    want = np.einsum('btd,dnh->btnh', x, params['w'][i]) + params['b'][i]
    np.testing.assert_allclose(got, want, atol=1e-5)
  steps = running.run(layer, variables, x[:, 0], method='extend_step')
  assert [step.shape for step in steps] == [(2, _N, _H)] * 3


def test_gradient_of_the_combined_projection_pads_nothing():
  x = running.normal(2, 4, _D)
  config = _config(attentions.CombinedQKVProjectionLayer)
  layer, variables = running.build(config, x)
  total = lambda variables: sum(y.sum() for y in layer.apply(variables, x))
  jaxpr = str(jax.make_jaxpr(jax.grad(total))(variables))
  assert 'concatenate' in jaxpr and 'pad' not in jaxpr


_NHD = {'is_output_projection': True, 'use_nhd_shape': True}
_COMBINED = {'attention_combine_dims': True, 'use_bias': False}


@pytest.mark.parametrize(
  'kwargs, split, weight, bias',
  [
    ({}, ['data', 'mdl', None], ['data', 'mdl', None], ['mdl', None]),
    (_NHD, ['mdl', None, 'data'], ['mdl', None, 'data'], ['data']),
    (_COMBINED, ['data', 'mdl', None], ['data', ('mdl',)], None),
    (
      {**_NHD, **_COMBINED},
      ['mdl', 'replica', 'data'],
      [('mdl', 'replica'), 'data'],
      None,
    ),
  ],
)
def test_shardings(kwargs, split, weight, bias):
  config = _config(
    ici_mesh_shape=[1, 2, 2],
    mesh_axis_names=['replica', 'data', 'mdl'],
    **kwargs,
  )
  config.weight_split_dims_mapping.wt = split
  output = kwargs.get('is_output_projection')
  x = jnp.zeros((2, _N, _H) if output else (2, _D))
  metadata = _metadata(config, x)
  assert list(metadata['w'].tensor_split_dims_mapping) == weight
  if bias:
    assert list(metadata['b'].tensor_split_dims_mapping) == bias


def test_sharding_of_the_combined_weight():
  config = _config(attentions.CombinedQKVProjectionLayer)
  config.weight_split_dims_mapping.wt = ['data', 'mdl', None]
  metadata = _metadata(config, jnp.zeros((2, _D)))
  assert list(metadata['w'].tensor_split_dims_mapping) == [
    None,
    'data',
    'mdl',
    None,
  ]
  assert list(metadata['b'].tensor_split_dims_mapping) == [None, 'mdl', None]


@pytest.mark.parametrize(
  'kwargs, fans',
  [
    ({}, (_D, _N * _H)),
    ({'is_output_projection': True}, (_N * _H, _D)),
    ({'is_output_projection': True, 'use_nhd_shape': True}, (_N * _H, _D)),
    ({'attention_combine_dims': True, 'use_bias': False}, (_D, _N * _H)),
  ],
)
def test_explicit_fans(kwargs, fans):
  config = _config(explicit_fan_in_fan_out_axes=True, **kwargs)
  output = kwargs.get('is_output_projection')
  weight = _metadata(config, jnp.zeros((2, _N, _H) if output else (2, _D)))['w']
  assert fans == base_layer.get_fan_in_fan_out(
    weight.shape, weight.fan_in_axes, weight.fan_out_axes
  )


def test_explicit_fans_of_the_combined_weight():
  config = _config(
    attentions.CombinedQKVProjectionLayer, explicit_fan_in_fan_out_axes=True
  )
  weight = _metadata(config, jnp.zeros((2, _D)))['w']
  assert (_D, _N * _H) == base_layer.get_fan_in_fan_out(
    weight.shape, weight.fan_in_axes, weight.fan_out_axes
  )


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'attention_combine_dims': True}, 'use_bias must be False'),
    ({'split': ['data', 'mdl']}, r"must have 3 entries.*\['data', 'mdl'\]"),
  ],
)
def test_impossible_projections_are_refused(kwargs, message):
  config = _config(**{k: v for k, v in kwargs.items() if k != 'split'})
  config.set(ici_mesh_shape=[2, 2], mesh_axis_names=['data', 'mdl'])
  config.weight_split_dims_mapping.wt = kwargs.get('split')
  with pytest.raises(ValueError, match=message):
    _metadata(config, jnp.zeros((2, _D)))


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


@pytest.mark.parametrize(
  'wt', [['data', 'mdl', None], ['data', ('mdl',)]], ids=['3 axes', '2 axes']
)
def test_the_combined_weight_of_combined_heads_has_a_bias(wt):
  cls = attentions.CombinedQKVProjectionLayer
  mesh = {'ici_mesh_shape': [2, 2], 'mesh_axis_names': ['data', 'mdl']}
  config = _config(cls, attention_combine_dims=True)
  on_mesh = config.clone().set(**mesh)
  on_mesh.weight_split_dims_mapping.wt = wt
  metadata = _metadata(on_mesh, jnp.zeros((2, _D)))
  assert list(metadata['b'].tensor_split_dims_mapping) == [None, ('mdl',)]
  x = running.normal(2, 4, _D)
  layer, variables = running.build(config, x)
  assert running.shapes(variables) == {'w': (3, _D, _N * _H), 'b': (3, _N * _H)}
  variables = jax.tree.map(lambda w: running.normal(*w.shape), variables)
  params = variables['params']
  outputs = running.run(layer, variables, x)
  for i, got in enumerate(outputs):
    want = x @ params['w'][i] + params['b'][i]
    np.testing.assert_allclose(got, want.reshape(got.shape), atol=1e-5)


def test_without_a_mesh_any_sharding_is_accepted():
  config = _config()
  config.weight_split_dims_mapping.wt = ['data', 'mdl']
  assert _metadata(config, jnp.zeros((2, _D)))['w'].full_shape == (_D, _N, _H)
