# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""States are split over devices like their variables, with equal numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from praxis import base_layer, optimizers
from praxis.optimizers import muon, prefix_vectorization
from tests.praxis.optimizers import problem
from tests.testing import nightly

vectorize = (
  prefix_vectorization.get_transformations_with_vectorized_repeat_prefix
)
AXES = ('replica', 'data', 'mdl')
SHAPE = (1, 4, 2)


def _hparams():
  mesh = dict(mesh_shape=SHAPE)
  return {
    'params': {
      'emb': problem.weight(
        [8, 4], tensor_split_dims_mapping=['data', 'mdl'], **mesh
      ),
      'ff': problem.weight(
        [4, 8],
        tensor_split_dims_mapping=['mdl', ('replica', 'data')],
        repeat_prefix=[3],
        repeat_prefix_split_dims_mapping=[-1],
        **mesh,
      ),
      'scale': problem.weight([4], **mesh),
    }
  }


def sophia_like(learning_rate):
  """Returns a chain whose second moment is a curvature, in extra state."""

  def init(params):
    return {
      'hessian': jax.tree.map(jnp.zeros_like, params),
      'seen': jnp.int32(0),
    }

  def update(updates, state, params):
    def curvature(h, u, w):
      return 0.99 * h + 0.01 * jnp.abs(u * w)

    hessian = jax.tree.map(curvature, state['hessian'], updates, params)
    updates = jax.tree.map(
      lambda u, h: jnp.clip(u / jnp.maximum(20.0 * h, 1e-8), -1.0, 1.0),
      updates,
      hessian,
    )
    return updates, {'hessian': hessian, 'seen': state['seen'] + 1}

  return optax.chain(
    optax.trace(0.96),
    optax.GradientTransformation(init, update),
    optax.scale(-learning_rate),
  )


def _tx_of(config):
  optimizer = config.set(
    learning_rate=0.1, lr_schedule=problem.SCHEDULE
  ).Instantiate()
  return vectorize(optimizer.get_grad_transformation, _hparams())


def _place(tree, specs, mesh):
  specs = base_layer.var_partition_specs(specs, SHAPE, AXES)
  shardings = jax.tree.map(
    lambda s: NamedSharding(mesh, s),
    specs,
    is_leaf=lambda s: isinstance(s, PartitionSpec),
  )
  return jax.device_put(tree, shardings), shardings


@pytest.mark.parametrize(
  'config',
  [
    optimizers.Adam.config(ema_decay=0.9, decoupled_weight_decay=0.1),
    optimizers.ShardedAdafactor.HParamsAdamB(),
    optimizers.Sgd.config(momentum=0.9),
    optimizers.Lamb.config(),
    optimizers.ShardedStaticAccumulator.config(
      optimizer_tpl=optimizers.Adam.config(), num_sub_batches=1
    ),
    *nightly.cases(
      optimizers.ShardedDistributedShampoo.config(
        mesh_axis_names=AXES,
        block_size=4,
        merge_small_dims_block_size=8,
        matrix_epsilon=1e-2,
        start_preconditioning_step=0,
        preconditioning_compute_steps=1,
        tensor_split_dims_mapping=[1, -1, 2],
        tensor_split_dims_mapping_for_inverse_pth_root=['data', -1, -1],
      )
    ),
    optimizers.OptaxOptimizer.config(grad_tx=sophia_like(0.1)),
  ],
)
def test_eight_devices_compute_what_one_does(config):
  _check_eight_devices(config, atol=1e-6)


@pytest.mark.parametrize(
  'config',
  [
    optimizers.Muon.config(),
    *nightly.cases(
      optimizers.OptaxOptimizer.config(grad_tx=optax.contrib.muon(0.1))
    ),
  ],
)
def test_eight_devices_compute_what_one_does_with_muon(config):
  # Each of Muon's five Newton-Schulz steps multiplies rounding by its slope at
  # zero, 3.4445; updates are of the size of the learning rate.
  rounding = 3.4445**5 * 2**-24
  _check_eight_devices(config, atol=0.1 * rounding)


def test_devices_orthogonalize_matrices_of_their_own():
  orthogonalize = jax.vmap(lambda x: muon.orthogonalize(x, 5, 1e-8))
  x = jax.ShapeDtypeStruct((5, 3, 16, 32), jnp.float32)

  def flops_per_device(x):
    return jax.jit(orthogonalize).lower(x).compile().cost_analysis()['flops']

  every = flops_per_device(x)
  auto = (jax.sharding.AxisType.Auto,) * 3
  mesh = jax.make_mesh(SHAPE, AXES, auto, devices=jax.devices()[:8])
  columns = NamedSharding(mesh, PartitionSpec(None, None, 'mdl', 'data'))
  with jax.set_mesh(mesh):
    own = flops_per_device(
      jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=columns)
    )
  # The most of 15 matrices that one of 8 devices has is 2.
  assert own < 1.05 * every * 2 / 15


def _check_eight_devices(config, atol):
  tx = _tx_of(config)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda hp: rng.normal(size=hp.full_shape).astype(np.float32), _hparams()
  )
  grads = problem.gradients(params, 1)
  state = tx.init(params)
  want, want_state = problem.jit(tx.update)(grads, state, params)

  auto = (jax.sharding.AxisType.Auto,) * 3
  mesh = jax.make_mesh(SHAPE, AXES, auto, devices=jax.devices()[:8])
  params, var_shardings = _place(params, _hparams(), mesh)
  state, shardings = _place(state, tx.init_partition_spec(_hparams()), mesh)
  update = problem.jit(tx.update, out_shardings=(var_shardings, shardings))
  with jax.set_mesh(mesh):
    got, got_state = update(grads, state, params)
  problem.assert_close(got, want, rtol=1e-5, atol=atol)
  problem.assert_close(got_state, want_state, rtol=1e-5, atol=atol)


def _specs_of(config):
  specs = _tx_of(config).init_partition_spec(_hparams())
  return base_layer.var_partition_specs(specs, SHAPE, AXES)


def test_moments_lie_where_their_variable_lies():
  specs = _specs_of(optimizers.Adam.config())
  emb, ff = PartitionSpec('data', 'mdl'), ('mdl', ('replica', 'data'))
  for moment in ('m', 'v'):
    assert specs['no_prefix'][2][moment]['params']['emb'] == emb
    stacked = specs['p#3#i-1'][2][moment]['params']['ff']
    assert stacked == PartitionSpec(None, *ff)
  assert specs['no_prefix'][2].count == PartitionSpec()
  assert specs['p#3#i-1'][2].count == PartitionSpec(None)


def test_factored_moments_keep_the_dimension_they_have():
  raw = _specs_of(optimizers.ShardedAdafactor.HParamsAdamB())['p#3#i-1'][2]
  assert raw.vr['params']['ff'] == PartitionSpec(None, 'mdl')
  assert raw.vc['params']['ff'] == PartitionSpec(None, ('replica', 'data'))
  assert raw.m_scale['params']['ff'] == PartitionSpec(None, ('replica', 'data'))


def test_any_chain_of_optax_is_sharded_like_its_variables():
  emb, ff = PartitionSpec('data', 'mdl'), ('mdl', ('replica', 'data'))
  specs = _specs_of(optimizers.OptaxOptimizer.config(grad_tx=sophia_like(0.1)))
  trace, curvature, _ = specs['no_prefix'][2]
  assert trace.trace['params']['emb'] == emb
  assert curvature['hessian']['params']['emb'] == emb
  assert curvature['seen'] == PartitionSpec()
  stacked = specs['p#3#i-1'][2][1]['hessian']['params']['ff']
  assert stacked == PartitionSpec(None, *ff)

  muon = optimizers.OptaxOptimizer.config(grad_tx=optax.contrib.muon(0.1))
  inner = _specs_of(muon)['no_prefix'][2][0]
  by_path = {
    jax.tree_util.keystr(path): spec
    for path, spec in jax.tree_util.tree_flatten_with_path(
      inner, is_leaf=lambda x: isinstance(x, PartitionSpec)
    )[0]
  }
  moments = {p: s for p, s in by_path.items() if p.endswith("['emb']")}
  assert moments and set(moments.values()) == {emb}
