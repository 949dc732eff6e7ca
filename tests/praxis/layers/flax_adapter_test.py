# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""flax modules within Pax layers, and Pax layers within flax modules."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import partitioning

from praxis import base_layer, flax_utils, pax_fiddle
from praxis.layers import flax_adapter, linears
from tests.praxis.layers import running

Flags = base_layer.WeightHParamsCollection
RULES = (('embed', 'data'), ('mlp', 'mdl'), ('unsplit', None))


class Block(nn.Module):
  """A dense layer and a batch norm, with names for the axes of one weight."""

  @nn.compact
  def __call__(self, x):
    kernel = partitioning.param_with_axes(
      'kernel', nn.initializers.lecun_normal(), (2, 4), axes=('embed', 'mlp')
    )
    gate = self.param(
      'gate',
      nn.with_logical_partitioning(nn.initializers.ones, ('mlp', 'unsplit')),
      (4, 4),
    )
    x = nn.Dense(3)(x @ kernel @ gate)
    return nn.BatchNorm(use_running_average=False, momentum=0.5)(x)


def adapter(**kwargs):
  return flax_adapter.FlaxModuleAdapter.config(
    module_factory_method=Block, **kwargs
  )


@pytest.fixture(scope='module')
def built():
  x = running.normal(5, 2)
  layer = adapter().Instantiate()
  return layer, layer.init(jax.random.key(0), x), x


def test_variables_lie_under_cld(built):
  _, variables, _ = built
  assert jax.tree.map(jnp.shape, variables) == {
    'params': {
      'cld': {
        'kernel': (2, 4),
        'gate': (4, 4),
        'Dense_0': {'kernel': (4, 3), 'bias': (3,)},
        'BatchNorm_0': {'scale': (3,), 'bias': (3,)},
      }
    },
    'batch_stats': {'cld': {'BatchNorm_0': {'mean': (3,), 'var': (3,)}}},
  }


def test_a_training_step_is_that_of_the_module(built):
  layer, variables, x = built
  inner = {name: tree['cld'] for name, tree in variables.items()}

  def loss_of(module):
    def loss(params, stats):
      out, updates = module.apply(
        {'params': params, 'batch_stats': stats}, x, mutable=['batch_stats']
      )
      return jnp.mean((out - 1.0) ** 3), updates['batch_stats']

    return running.jit(jax.value_and_grad(loss, has_aux=True))

  (value, stats), grads = loss_of(layer)(
    variables['params'], variables['batch_stats']
  )
  (want, want_stats), want_grads = loss_of(Block())(
    inner['params'], inner['batch_stats']
  )
  np.testing.assert_allclose(value, want, rtol=1e-6)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
  jax.tree.map(close, stats['cld'], want_stats)
  jax.tree.map(close, grads['cld'], want_grads)
  assert float(jnp.abs(grads['cld']['kernel']).sum()) > 0


def test_names_of_axes_become_split_dims():
  cfg = adapter(
    logical_axes_rules=RULES,
    ici_mesh_shape=[1, 1],
    mesh_axis_names=['data', 'mdl'],
    var_collection_map={'batch_stats': [Flags.NON_TRAINABLE]},
  )
  tree = cfg.Instantiate().abstract_init_with_metadata(jnp.ones([5, 2]))
  params = tree['params']['cld']
  mapping = lambda w: w.tensor_split_dims_mapping
  assert mapping(params['kernel']) == ['data', 'mdl']
  assert mapping(params['gate']) == ['mdl', None]
  assert mapping(params['Dense_0']['kernel']) == [None, None]
  assert 'params_axes' not in tree
  mean = tree['batch_stats']['cld']['BatchNorm_0']['mean']
  assert mean.collections == [Flags.NON_TRAINABLE]
  plain = adapter().Instantiate().abstract_init_with_metadata(jnp.ones([5, 2]))
  mean = plain['batch_stats']['cld']['BatchNorm_0']['mean']
  assert base_layer.var_not_trainable(mean)
  assert base_layer.var_requires_mean_sync(mean)
  with pytest.raises(ValueError, match='ici_mesh_shape is not set'):
    adapter(logical_axes_rules=RULES).Instantiate().init(
      jax.random.key(0), jnp.ones([5, 2])
    )


def test_a_module_by_its_config():
  cfg = flax_adapter.DirectFlaxModuleAdapter.config(
    cld=pax_fiddle.Config(nn.Dense, features=3)
  )
  x = running.normal(5, 2)
  layer, variables = running.build(cfg, x)
  dense = variables['params']['cld']
  want = np.asarray(x) @ dense['kernel'] + dense['bias']
  np.testing.assert_allclose(
    running.run(layer, variables, x), want, rtol=1e-5, atol=1e-6
  )


def test_what_is_no_module_is_refused():
  direct = flax_adapter.DirectFlaxModuleAdapter.config()
  with pytest.raises(TypeError, match='must be a flax nn.Module, got NoneType'):
    direct.Instantiate().init(jax.random.key(0), 1.0)
  empty = flax_adapter.FlaxModuleAdapter.config()
  with pytest.raises(ValueError, match='module_factory_method .* must be set'):
    empty.Instantiate().init(jax.random.key(0), 1.0)


class Seq2Seq(nn.Module):
  def setup(self):
    self.encoder = nn.Dense(3, use_bias=False)
    self.decoder = nn.Dense(2, use_bias=False)

  def encode(self, x):
    return self.encoder(x)

  def decode(self, x):
    return self.decoder(x)

  def __call__(self, x):
    return self.decode(self.encode(x))


def test_encoder_and_decoder():
  cfg = flax_adapter.EncoderDecoderFlaxModuleAdaptor.config(
    module_factory_method=Seq2Seq
  )
  x = running.normal(5, 4)
  layer, variables = running.build(cfg, x)
  parts = variables['params']['cld']
  encoded = running.run(layer, variables, x, method=layer.encode)
  np.testing.assert_allclose(
    encoded, np.asarray(x) @ parts['encoder']['kernel'], rtol=1e-5, atol=1e-6
  )
  decoded = running.run(layer, variables, encoded, method=layer.decode)
  np.testing.assert_allclose(
    running.run(layer, variables, x), decoded, rtol=1e-5, atol=1e-6
  )
  with pytest.raises(ValueError, match="no method 'compute_logits'"):
    layer.apply(variables, x, method=layer.compute_logits)


class PlainModel(nn.Module):
  """A plain flax module around a layer of Pax."""

  layer: Any

  @nn.compact
  def __call__(self, x):
    made_here = linears.Bias(dims=3)
    return nn.Dense(1)(self.layer(x)) + made_here(x).sum()


def test_a_pax_layer_in_a_plain_flax_module():
  feed_forward = linears.FeedForward.config(input_dims=3, output_dims=4)
  model = PlainModel(feed_forward.Instantiate())
  x = running.normal(5, 3)
  boxed = model.init(jax.random.key(0), x)
  assert isinstance(
    boxed['params']['layer']['linear']['w'], base_layer.BoxedParam
  )
  variables = nn.unbox(boxed)
  assert jax.tree.map(jnp.shape, variables) == {
    'params': {
      'layer': {'linear': {'w': (3, 4)}, 'bias': {'b': (4,)}},
      'Dense_0': {'kernel': (4, 1), 'bias': (1,)},
      'Bias_0': {'b': (3,)},
    }
  }
  loss = lambda v: jnp.sum(model.apply(v, x) ** 2)
  value, grads = running.jit(jax.value_and_grad(loss))(variables)
  np.testing.assert_allclose(loss(boxed), value, rtol=1e-5)
  p = jax.tree.map(np.asarray, variables['params'])
  hidden = np.maximum(
    np.asarray(x) @ p['layer']['linear']['w'] + p['layer']['bias']['b'], 0
  )
  y = hidden @ p['Dense_0']['kernel'] + p['Dense_0']['bias']
  y = y + (np.asarray(x) + p['Bias_0']['b']).sum()
  np.testing.assert_allclose(value, np.sum(y**2), rtol=1e-4)
  back = (2 * y @ p['Dense_0']['kernel'].T) * (hidden > 0)
  np.testing.assert_allclose(
    grads['params']['layer']['linear']['w'],
    np.asarray(x).T @ back,
    rtol=1e-4,
    atol=1e-4,
  )


class Compact(nn.Module):
  """Layers of Pax built from Configs where they are called."""

  feed_forward: Any

  @nn.compact
  def __call__(self, x):
    named = self.feed_forward.clone().set(name='first')
    x = named.Instantiate()(x)
    return self.feed_forward.Instantiate(input_dims=4)(x)


def test_a_pax_layer_built_in_a_compact_method():
  model = Compact(linears.FeedForward.config(input_dims=3, output_dims=4))
  x = running.normal(5, 3)
  variables = nn.unbox(model.init(jax.random.key(0), x))
  assert jax.tree.map(jnp.shape, variables) == {
    'params': {
      'first': {'linear': {'w': (3, 4)}, 'bias': {'b': (4,)}},
      'FeedForward_0': {'linear': {'w': (4, 4)}, 'bias': {'b': (4,)}},
    }
  }
  want = np.asarray(x)
  for name in ('first', 'FeedForward_0'):
    mine = variables['params'][name]
    want = np.maximum(want @ mine['linear']['w'] + mine['bias']['b'], 0)
  np.testing.assert_allclose(
    model.apply(variables, x), want, rtol=1e-5, atol=1e-6
  )


def test_summaries_are_split_and_joined_again():
  tree = {'a': jnp.arange(6.0).reshape(3, 2)}
  unpacked = flax_utils.maybe_unpack_summary(tree, True, 3)
  assert [x.shape for x in unpacked['a']] == [(1, 2)] * 3
  again = flax_utils.maybe_repack_summary(unpacked, True, 3)
  np.testing.assert_array_equal(again['a'][:, 0], tree['a'])
  assert flax_utils.maybe_unpack_summary(tree, False, 9) is tree
  assert flax_utils.maybe_repack_summary(tree, False, 9) is tree
  with pytest.raises(ValueError, match='must have first dimension 4'):
    flax_utils.maybe_unpack_summary(tree, True, 4)
  with pytest.raises(ValueError, match='expected 2 summaries, got 3'):
    flax_utils.maybe_repack_summary(unpacked, True, 2)


class _TwoMethods(nn.Module):
  def setup(self):
    self.dense = nn.Dense(3)

  def __call__(self, x):
    return self.dense(x)

  def twice(self, x, *, scale):
    return 2 * scale * self.dense(x)


def test_any_method_of_the_module_is_called():
  layer = flax_adapter.FlaxModuleAdapter.config(
    module_factory_method=_TwoMethods
  ).Instantiate()
  x = running.normal(2, 4)
  variables = layer.init(jax.random.key(0), x)
  call = functools.partial(layer.apply, variables, method='call_method')
  np.testing.assert_allclose(
    call('twice', x, scale=0.5), layer.apply(variables, x), rtol=1e-6
  )
  with pytest.raises(ValueError, match="no method 'thrice'"):
    call('thrice', x)
