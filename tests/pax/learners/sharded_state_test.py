# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Training steps with the state of Shampoo sharded over eight devices."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import PartitionSpec

from pax import partitioning
from praxis import optimizers, schedules
from tests.pax import tiny


def _train(mesh, devices):
  """Returns (the losses of four steps, Shampoo's state, the summaries)."""
  config = tiny.task(mesh)
  config.train.learner.optimizer = optimizers.ShardedDistributedShampoo.config(
    learning_rate=0.1,
    lr_schedule=schedules.Constant.config(),
    block_size=8,
    matrix_epsilon=1e-3,
    start_preconditioning_step=1,
    preconditioning_compute_steps=2,
    mesh_axis_names=('replica', 'data', 'mdl'),
    tensor_split_dims_mapping=[-1, 1, 2],
    tensor_split_dims_mapping_for_inverse_pth_root=[1, -1, 2],
  )
  made = partitioning.partition_task(
    config, tiny.spec(tiny.batch()), devices=jax.devices()[:devices]
  )
  state = made.initialize(jax.random.key(0))
  losses = []
  for seed in range(4):
    batch = made.put_batch(tiny.batch(seed=seed))
    state, output = made.train_step()(state, batch, jax.random.key(1))
    losses.append(float(output.loss))
  return losses, state.opt_states[0][2], output.summary_tensors


def test_eight_devices_train_as_one_does():
  want, _, _ = _train([1, 1, 1], 1)
  losses, state, summaries = _train([1, 4, 2], 8)
  np.testing.assert_allclose(losses, want, rtol=1e-3)
  for kept in (state.statistics, state.preconditioners):
    split = kept.s8p2.values.sharding.spec
    assert split == PartitionSpec(None, 'data', 'mdl')
  error = summaries['inverse_pth_root_errors/params/second/w_scalar']
  assert 0 < float(error) < 1e-3
  assert float(summaries['learning/skipped_steps_aggregate_scalar']) == 0.0
