# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Quantized and sparse variables of layers, and trees of them."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams


class _Halves(base_layer.BaseLayer):
  """A layer whose quantized weight is half of it."""

  def setup(self) -> None:
    hparams = WeightHParams([2, 3], tensor_split_dims_mapping=['data', None])
    self.create_variable('w', hparams)

  def __call__(self) -> None:
    pass

  def quantize_weight(self):
    return {'params': {'w': self.theta.w / 2}}


class _Owner(base_layer.BaseLayer):
  def setup(self) -> None:
    self.create_child('one', pax_fiddle.Config(_Halves))
    self.create_children('many', [pax_fiddle.Config(_Halves)] * 2)
    self.dense = nn.Dense(2)
    self._children['dense'] = self.dense
    self.create_variable('b', WeightHParams([2]))
    count = WeightHParams([], init=base_layer.WeightInit.Constant(3.0))
    self.create_variable('count', count, trainable=False)

  def __call__(self) -> None:
    for child in (self.one, *self.many):
      child()
    self.dense(jnp.ones((1, 2)))


class _Stored(base_layer.BaseLayer):
  kind: str = 'quantized'

  def setup(self) -> None:
    hparams = WeightHParams([4, 3])
    if self.kind == 'sparse':
      self.create_sparse_variable('w', hparams)
    else:
      self.create_quantized_variable('w', hparams, [3], use_symmetric=False)

  def __call__(self):
    if self.kind == 'sparse':
      return self.get_sparse_weight('w')
    return self.get_quantized_weight('w', use_symmetric=False)


def test_a_tree_has_what_each_layer_makes_of_its_weights():
  owner = pax_fiddle.Config(
    _Owner, ici_mesh_shape=[2], mesh_axis_names=['data']
  ).Instantiate(name='owner')
  variables = owner.init(jax.random.key(0))
  tree = owner.apply(variables, method=owner.quantize_weight)
  assert jax.tree.structure(tree) == jax.tree.structure(variables)
  for name in ('one', 'many_0', 'many_1'):
    old, new = variables['params'][name]['w'], tree['params'][name]['w']
    assert (new == old / 2).all()
  assert (tree['params']['b'] == variables['params']['b']).all()
  assert tree['non_trainable']['count'] == 3.0
  specs = owner.apply(variables, method=owner.quantized_partition_specs)
  assert specs['params']['many_1']['w'].meta == PartitionSpec('data', None)
  assert specs['params']['b'].meta == PartitionSpec(None)
  assert specs['params']['dense']['kernel'].meta == PartitionSpec()


def test_a_quantized_weight_has_a_scale_and_a_zero_point():
  layer = pax_fiddle.Config(_Stored).Instantiate(name='layer')
  variables = layer.init(jax.random.key(0))['params']
  assert {k: (v.shape, v.dtype.name) for k, v in variables.items()} == {
    'w': ((4, 3), 'int8'),
    'w_quantized_scale': ((3,), 'float32'),
    'w_quantized_zp': ((3,), 'float32'),
  }
  weight, scale, zero_point = layer.apply({'params': variables})
  assert (weight == 0).all() and weight.dtype == jnp.int8
  assert (scale == variables['w_quantized_scale']).all()
  assert (zero_point == variables['w_quantized_zp']).all()


def test_a_sparse_weight_has_a_mask():
  layer = pax_fiddle.Config(_Stored, kind='sparse').Instantiate(name='layer')
  variables = layer.init(jax.random.key(0))
  weight, mask = layer.apply(variables)
  assert (weight == variables['params']['w']).all()
  assert mask.dtype == jnp.bool_ and not mask.any()
  assert 'w_sparsity_mask' in variables['non_trainable']


def test_a_scale_has_one_shape():
  class Twice(base_layer.BaseLayer):
    def setup(self) -> None:
      hparams = WeightHParams([4, 3])
      self.create_quantized_variable('w', hparams, [3], scale_hparams=hparams)

    def __call__(self) -> None:
      pass

  layer = pax_fiddle.Config(Twice).Instantiate(name='layer')
  with pytest.raises(ValueError, match='are both given'):
    layer.init(jax.random.key(0))
