# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Presets of Shampoo, what is refused, and where matrices are placed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from praxis import base_layer, optimizers, schedules
from tests.praxis.optimizers import problem

Shampoo = optimizers.DistributedShampoo
Sharded = optimizers.ShardedDistributedShampoo
AXES = ('replica', 'data', 'mdl')


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(cholesky=True), 'use eigh=True'),
    (dict(qr_based_root=True), 'eigh=True'),
    (dict(lobpcg_topk_precondition=2, eigh=True), 'set one of them'),
    (dict(frequent_directions=True), 'compression_rank compresses'),
    (dict(average_grad=True), 'belongs to frequent_directions'),
    (dict(reuse_preconditioner=True), 'belongs to frequent_directions'),
    (dict(batch_axis_name='rows'), "must be 'batch'"),
    (dict(graft_type=9), '9 is not a valid GraftingType'),
  ],
)
def test_what_is_not_available_says_why(fields, message):
  with pytest.raises(ValueError, match=message):
    Shampoo.config(**fields).Instantiate()


def test_a_mesh_needs_names_and_mappings_of_three():
  with pytest.raises(ValueError, match='must have 3 entries'):
    Sharded.config(tensor_split_dims_mapping=[-1, 1]).Instantiate()
  hparams = {'w': problem.weight([4, 4], mesh_shape=(1, 4, 2))}
  config = Sharded.config(lr_schedule=schedules.Constant.config())
  with pytest.raises(ValueError, match=r'axes of the mesh \[1, 4, 2\]'):
    config.Instantiate().get_grad_transformation(hparams)


@pytest.mark.parametrize('cls', [Shampoo, Sharded])
def test_declared_stacked_variables_must_be_vectorized(cls):
  config = cls.config(lr_schedule=schedules.Constant.config())
  stacked = {'w': problem.weight([2, 2], repeat_prefix=[3])}
  tx = config.Instantiate().get_grad_transformation(stacked)
  with pytest.raises(ValueError, match='Shampoo got the stacked variable w'):
    tx.init_partition_spec(stacked)


def test_presets():
  image = Shampoo.HParamsImageClassification().Instantiate()
  assert (image.block_size, image.beta2, image.weight_decay) == (
    128,
    0.95,
    1e-4,
  )
  assert image.graft_type == optimizers.GraftingType.SGD
  language = Shampoo.HParamsLanguageModeling().Instantiate()
  assert language.clip_gradient_norm_to_value == 5.0
  assert language.graft_type == optimizers.GraftingType.RMSPROP_NORMALIZED
  large = Sharded.HParamsLargeLanguageModeling().Instantiate()
  assert (large.block_size, large.merge_small_dims_block_size) == (4096, 12288)
  assert large.skip_preconditioning_dim_size_gt == 24576
  assert large.mesh_axis_names == AXES


def test_axes_are_ignored_where_only_replicas_are():
  config = Sharded.config(
    learning_rate=0.1,
    lr_schedule=schedules.Constant.config(),
    start_preconditioning_step=1,
    preconditioning_compute_steps=1,
  )
  hparams, params = {'w': problem.weight([4, 3])}, {'w': jnp.ones((4, 3))}
  results = []
  for axes in (None, AXES):
    optimizer = config.clone().set(mesh_axis_names=axes).Instantiate()
    tx = optimizer.get_grad_transformation(hparams)
    state, update = tx.init(params), problem.jit(tx.update)
    with jax.set_mesh(jax.make_mesh((1,), ('batch',))):
      for _ in range(3):
        updates, state = update(params, state, params)
    results.append(updates['w'])
  np.testing.assert_array_equal(*results)


def _specs(**fields):
  hparams = {
    'w': problem.weight(
      [16, 6], tensor_split_dims_mapping=['data', 'mdl'], mesh_shape=(1, 4, 2)
    ),
    'b': problem.weight([6], mesh_shape=(1, 4, 2)),
  }
  config = Sharded.config(
    learning_rate=0.1,
    lr_schedule=schedules.Constant.config(),
    mesh_axis_names=AXES,
    block_size=8,
    merge_small_dims_block_size=8,
    best_effort_memory_usage_reduction=True,
    **fields,
  )
  tx = config.Instantiate().get_grad_transformation(hparams)
  specs = tx.init_partition_spec(hparams)
  shapes = jax.tree.map(
    lambda hp: jax.ShapeDtypeStruct(hp.shape, hp.dtype), hparams
  )
  state = jax.eval_shape(tx.init, shapes)
  assert jax.tree.structure(state) == jax.tree.structure(specs)
  for x, hp in zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True):
    assert (x.shape, x.dtype) == (tuple(hp.full_shape), hp.dtype)
  return state[2], base_layer.var_partition_specs(specs, (1, 4, 2), AXES)[2]


def test_matrices_are_split_where_axes_divide_them():
  state, specs = _specs(
    tensor_split_dims_mapping=[-1, 1, 2],
    tensor_split_dims_mapping_for_inverse_pth_root=[1, -1, 2],
  )
  # Two blocks of [8, 6] have two matrices of each size.
  assert state.statistics.s8p4.values.shape == (2, 8, 8)
  assert specs.statistics.s8p4.values == PartitionSpec(None, 'data', 'mdl')
  # Four devices do not divide 6.
  assert specs.preconditioners.s6p4.values == PartitionSpec(None, None, 'mdl')
  # The shapes of the state do not depend on the mesh, which may change.
  assert state.statistics.s6p2.values.shape == (1, 6, 6)


def test_each_device_along_the_axis_of_matrices_has_one():
  state, specs = _specs(tensor_split_dims_mapping=[1, -1, 2])
  assert state.statistics.s6p2.values.shape == (4, 6, 6)
  assert specs.statistics.s6p2.values == PartitionSpec('data', None, 'mdl')


def test_the_number_of_matrices_can_be_given():
  state, _ = _specs(num_devices_for_pjit=8)
  assert state.statistics.s8p4.values.shape == (8, 8, 8)


def test_momenta_lie_where_their_variable_lies():
  _, specs = _specs()
  assert specs.momentum['w'].values == PartitionSpec('data', 'mdl')
  assert specs.momentum['w'].scale == PartitionSpec('mdl')
  assert specs.diagonal_statistics['w'] == PartitionSpec('data', 'mdl')
  assert specs.count == PartitionSpec()
