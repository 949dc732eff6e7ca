# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Training a model that has a flax module in it."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import partitioning
from praxis import base_layer, pax_fiddle
from praxis.layers import flax_adapter, repeats
from tests.pax import tiny
from tests.testing import nightly

_KEY = jax.random.key(0)
_LAYERS = 2


class Block(nn.Module):
  """A dense layer, its width split, and a batch norm."""

  @nn.compact
  def __call__(self, x):
    init = nn.with_logical_partitioning(
      nn.initializers.normal(0.3), (None, 'width')
    )
    x = nn.Dense(tiny.DIM, kernel_init=init)(x)
    return nn.BatchNorm(use_running_average=False, momentum=0.5)(x)


class Model(tiny.TinyModel):
  """The tiny model behind one flax module, and others in a scan."""

  def setup(self):
    super().setup()
    adapter = pax_fiddle.Config(
      flax_adapter.FlaxModuleAdapter, module_factory_method=Block
    )
    if self.mesh_axis_names:
      adapter.logical_axes_rules = (('width', 'mdl'),)
    self.create_child('block', adapter)
    self.create_child(
      'blocks', repeats.Repeat.config(sub_tpl=adapter.clone(), x_times=_LAYERS)
    )

  def compute_predictions(self, input_batch):
    blocked = input_batch.copy()
    blocked.x = self.blocks(self.block(input_batch.x))
    return super().compute_predictions(blocked)


def _partitioner(mesh, num_devices, **model_fields):
  config = tiny.task(mesh, **model_fields)
  config.model.cls = Model
  return partitioning.partition_task(
    config, tiny.spec(tiny.batch()), devices=jax.devices()[:num_devices]
  )


def _train(made):
  """Returns the variables before and after three steps, and the losses."""
  state, step = made.initialize(_KEY), made.train_step()
  first, losses = jax.tree.map(np.asarray, state.mdl_vars), []
  for i in range(3):
    batch = made.put_batch(tiny.batch(seed=i))
    state, output = step(state, batch, jax.random.key(1))
    losses.append(float(output.loss))
  return first, state.mdl_vars, losses


@pytest.fixture(scope='module')
def alone():
  return _train(_partitioner([1, 1, 1], 1))


def _block(weights, stats, x):
  """One block in plain JAX: (output, new running statistics)."""
  dense, norm = weights['Dense_0'], weights['BatchNorm_0']
  x = x @ dense['kernel'] + dense['bias']
  mean, var = x.mean(axis=0), x.var(axis=0)
  stats = {
    'mean': 0.5 * stats['mean'] + 0.5 * mean,
    'var': 0.5 * stats['var'] + 0.5 * var,
  }
  normed = (x - mean) * jax.lax.rsqrt(var + 1e-5)
  return normed * norm['scale'] + norm['bias'], stats


def _loss(params, stats, batch):
  stats = {**stats, 'blocks': list(stats['blocks'])}
  x, stats['block'] = _block(params['block'], stats['block'], batch.x)
  for i in range(_LAYERS):
    weights = jax.tree.map(lambda w, i=i: w[i], params['blocks'])
    x, stats['blocks'][i] = _block(weights, stats['blocks'][i], x)
  first, second = params['first'], params['second']
  x = jax.nn.relu(x @ first['linear']['w'] + first['bias']['b'])
  error = jnp.square((x @ second['w'])[:, 0] - batch.y)
  return (error * batch.weights).sum() / (batch.weights.sum() + 1e-6), stats


def _plain(params):
  """Without the levels that adapter and scan add."""
  return {
    **params,
    'block': params['block']['cld'],
    'blocks': params['blocks']['sub']['cld'],
  }


def test_three_steps_equal_those_by_hand(alone):
  first, last, losses = alone
  params = _plain(first['params'])
  stats = jax.tree.map(
    lambda tree: tree['BatchNorm_0'],
    _plain(first['batch_stats']),
    is_leaf=lambda tree: 'BatchNorm_0' in tree,
  )
  stats['blocks'] = [
    jax.tree.map(lambda x, i=i: x[i], stats['blocks']) for i in range(_LAYERS)
  ]
  options = {'xla_backend_optimization_level': 0}
  step = jax.jit(
    jax.value_and_grad(_loss, has_aux=True), compiler_options=options
  )
  for i, loss in enumerate(losses):
    batch = jax.tree.map(np.float32, tiny.batch(seed=i))
    (want, stats), grads = step(params, stats, batch)
    np.testing.assert_allclose(loss, want, rtol=1e-4)
    params = jax.tree.map(lambda w, grad: w - 0.1 * grad, params, grads)
  close = lambda got, want: np.testing.assert_allclose(
    got, want, rtol=1e-3, atol=1e-5
  )
  jax.tree.map(close, _plain(last['params']), params)
  got = _plain(last['batch_stats'])
  close(got['block']['BatchNorm_0']['var'], stats['block']['var'])
  for i in range(_LAYERS):
    close(got['blocks']['BatchNorm_0']['mean'][i], stats['blocks'][i]['mean'])


def test_values_are_those_of_the_module(alone):
  first = _plain(alone[0]['params'])
  block = first['block']
  kernels = [block['Dense_0']['kernel'], *first['blocks']['Dense_0']['kernel']]
  np.testing.assert_allclose([k.std() for k in kernels], 0.3, rtol=0.4)
  for i, kernel in enumerate(kernels):
    for other in kernels[i + 1 :]:
      assert (kernel != other).all()
  np.testing.assert_array_equal(block['BatchNorm_0']['scale'], 1.0)
  np.testing.assert_array_equal(block['Dense_0']['bias'], 0.0)


@pytest.mark.parametrize(
  'mesh, num_devices',
  [
    *nightly.cases(([1, 2, 1], 2)),
    ([2, 2, 2], 8),
    (None, 4),
  ],
)
def test_values_are_the_same_on_all_devices(mesh, num_devices, alone):
  mdl_vars = _partitioner(mesh, num_devices).initialize(_KEY).mdl_vars
  jax.tree.map(np.testing.assert_array_equal, mdl_vars, alone[0])
  kernel = mdl_vars['params']['block']['cld']['Dense_0']['kernel']
  assert len(kernel.sharding.device_set) == num_devices
  shard = kernel.addressable_shards[0].data.shape
  ways = 1 if mesh is None else mesh[-1]
  assert shard == (tiny.DIM, tiny.DIM // ways)


def test_three_steps_on_four_devices(alone):
  first, last, losses = _train(_partitioner([1, 2, 2], 4))
  jax.tree.map(np.testing.assert_array_equal, first, alone[0])
  np.testing.assert_allclose(losses, alone[2], rtol=1e-4)
  close = lambda got, want: np.testing.assert_allclose(
    got, want, rtol=1e-3, atol=1e-5
  )
  jax.tree.map(close, last, alone[1])


def test_statistics_are_not_trained():
  declared = _partitioner([1, 1, 1], 1).var_weight_hparams['batch_stats']
  for mine in jax.tree.leaves(declared):
    assert base_layer.var_not_trainable(mine)
