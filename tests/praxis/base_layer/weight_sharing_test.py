# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Layers that share weights: by one Config, by an id, by one instance."""

from __future__ import annotations

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.base_layer import JaxContext
from praxis.layers import linears
from tests.praxis.layers import running

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class Pair(base_layer.BaseLayer):
  """Two layers, one after the other."""

  first_tpl: LayerTpl = pax_fiddle.template_field(None)
  second_tpl: LayerTpl = pax_fiddle.template_field(None)

  def setup(self):
    self.create_child('first', self.first_tpl)
    self.create_child('second', self.second_tpl)

  def __call__(self, x):
    return self.second(self.first(x))


class Fields(base_layer.BaseLayer):
  """Two layers built with their owner."""

  first: Any = pax_fiddle.instance_field(linears.Linear)
  second: Any = pax_fiddle.instance_field(linears.Linear)

  def __call__(self, x):
    return self.second(self.first(x))


def linear(**kwargs) -> LayerTpl:
  return pax_fiddle.Config(
    linears.Linear, input_dims=2, output_dims=2, **kwargs
  )


def shared_linear(**kwargs) -> LayerTpl:
  return linear(shared_weight_layer_id='shared', **kwargs)


X = jnp.asarray([[1.0, -2.0], [0.5, 3.0]], jnp.float32)


def check_is_w_squared(layer, name):
  """Output and gradient of x w w, from numpy, where w has one place."""
  variables = layer.init(jax.random.key(0), X)
  assert jax.tree.map(jnp.shape, variables) == {'params': {name: {'w': (2, 2)}}}
  w = np.asarray(variables['params'][name]['w'])
  loss = lambda v: jnp.sum(layer.apply(v, X) ** 2)
  value, grads = running.jit(jax.value_and_grad(loss))(variables)
  x = np.asarray(X)
  y = x @ w @ w
  np.testing.assert_allclose(value, np.sum(y**2), rtol=1e-5)
  # Both uses add up.
  expected = x.T @ (2 * y @ w.T) + (x @ w).T @ (2 * y)
  np.testing.assert_allclose(grads['params'][name]['w'], expected, rtol=1e-5)


def test_one_config_in_two_instance_fields():
  cfg = linear()
  layer = Fields.config(first=cfg, second=cfg).Instantiate()
  check_is_w_squared(layer, 'first')


def test_one_instance_in_two_fields():
  made = linear().Instantiate()
  check_is_w_squared(Fields(first=made, second=made, parent=None), 'first')


def test_equal_configs_are_two_layers():
  layer = Fields.config(first=linear(), second=linear()).Instantiate()
  variables = layer.init(jax.random.key(0), X)
  assert sorted(variables['params']) == ['first', 'second']


def test_one_id():
  layer = Pair.config(first_tpl=shared_linear(), second_tpl=shared_linear())
  check_is_w_squared(layer.Instantiate(), 'shared')


def test_one_id_in_an_explicit_context_and_under_jit():
  layer = Pair.config(
    first_tpl=shared_linear(name='a'), second_tpl=shared_linear(name='b')
  ).Instantiate()
  with JaxContext.new_context():
    variables = jax.jit(layer.init)(jax.random.key(0), X)
    once = layer.apply(variables, X)
    np.testing.assert_array_equal(once, layer.apply(variables, X))
  assert list(variables['params']) == ['shared']


def test_only_a_part_is_shared():
  part = pax_fiddle.Config(linears.FeedForward, input_dims=2, output_dims=2)
  part.linear_tpl.shared_weight_layer_id = 'shared'
  layer = Pair.config(first_tpl=part, second_tpl=part.clone()).Instantiate()
  tree = layer.abstract_init_with_metadata(X)
  shapes = jax.tree.map(
    lambda w: w.full_shape, tree, is_leaf=lambda x: hasattr(x, 'full_shape')
  )
  bias = {'bias': {'b': (2,)}}
  assert shapes['params'] == {
    'shared': {'w': (2, 2)},
    'first': bias,
    'second': bias,
  }


class RootPair(Pair):
  is_shared_weight_root: ClassVar[bool] = True


def test_shared_weights_are_in_the_layer_that_is_their_root():
  pair = Pair.config(first_tpl=shared_linear(), second_tpl=shared_linear())
  inner = RootPair.config(first_tpl=shared_linear(), second_tpl=shared_linear())
  layer = Pair.config(first_tpl=inner, second_tpl=pair).Instantiate()
  params = layer.init(jax.random.key(0), X)['params']
  assert jax.tree.map(jnp.shape, params) == {
    'first': {'shared': {'w': (2, 2)}},
    'shared': {'w': (2, 2)},
  }
  first, root = params['first']['shared']['w'], params['shared']['w']
  want = X @ first @ first @ root @ root
  np.testing.assert_allclose(layer.apply({'params': params}, X), want, 1e-5)


def test_shared_layers_of_shared_layers():
  part = pax_fiddle.Config(linears.FeedForward, input_dims=2, output_dims=2)
  part.linear_tpl.shared_weight_layer_id = 'inner'
  pair = Pair.config(
    first_tpl=part, second_tpl=part.clone(), shared_weight_layer_id='outer'
  )
  root = Pair.config(first_tpl=pair, second_tpl=pair.clone()).Instantiate()
  params = root.init(jax.random.key(0), X)['params']
  bias = {'bias': {'b': (2,)}}
  assert jax.tree.map(jnp.shape, params) == {
    'inner': {'w': (2, 2)},
    'outer': {'first': bias, 'second': bias},
  }


def test_the_shared_layer_inherits_and_is_reflected_once():
  layer = Pair.config(
    first_tpl=shared_linear(),
    second_tpl=shared_linear(),
    fprop_dtype=jnp.bfloat16,
  ).Instantiate()
  tree = layer.abstract_init_with_mdl_config(X)
  assert sorted(tree) == ['_hparams', 'shared']
  assert tree['shared']['_hparams'].fprop_dtype == jnp.bfloat16
  assert tree['_hparams'].first_tpl is None


def test_differing_configs_are_refused_by_line():
  layer = Pair.config(
    first_tpl=shared_linear(), second_tpl=shared_linear(dtype=jnp.bfloat16)
  ).Instantiate()
  with pytest.raises(ValueError, match=r"id='shared'.*\n  - dtype : float32"):
    layer.init(jax.random.key(0), X)


def test_an_id_on_an_instance_field_is_refused():
  layer = Fields.config(first=shared_linear(), second=linear()).Instantiate()
  with pytest.raises(
    ValueError, match='works for layers that create_child builds'
  ):
    layer.init(jax.random.key(0), X)


class Scanned(base_layer.BaseLayer):
  """A scan over a pair of layers of one id."""

  def setup(self):
    pair = Pair.config(first_tpl=shared_linear(), second_tpl=shared_linear())
    self.create_child('sub', pair)

  def __call__(self, x):
    scan = nn.scan(
      lambda layer, carry, _: (layer(carry), None),
      variable_axes={base_layer.PARAMS: 0},
      split_rngs={base_layer.PARAMS: True},
      length=3,
      metadata_params={'x_times': 3},
    )
    return scan(self.sub, x, None)[0]


def test_an_id_within_a_scan_is_shared_in_each_step():
  layer = Scanned.config().Instantiate()
  variables = layer.init(jax.random.key(0), X)
  w = np.asarray(variables['params']['sub']['shared']['w'])
  assert w.shape == (3, 2, 2)
  y = np.asarray(X)
  for step in w:
    y = y @ step @ step
  np.testing.assert_allclose(layer.apply(variables, X), y, rtol=1e-5)


def test_the_context_knows_shared_layers():
  class Root(base_layer.BaseLayer):
    def setup(self):
      self.create_child('first', shared_linear())

    def __call__(self, x):
      known = self.jax_context.lookup_shared_layer(self.scope.root, 'shared')
      assert known.layer is self.first
      assert known.hparams.input_dims == 2
      assert (
        self.jax_context.lookup_shared_layer(self.scope.root, 'other') is None
      )
      with pytest.raises(ValueError, match='shared as'):
        self.jax_context.set_shared_layer(
          self.scope.root, 'shared', self.first, known.hparams
        )
      return self.first(x)

  Root.config().Instantiate().init(jax.random.key(0), X)


def test_compatible_hparams():
  assert base_layer.compatible_hparams(linear(), linear(name='foo'))
  assert not base_layer.compatible_hparams(linear(), linear(dtype=jnp.float16))
