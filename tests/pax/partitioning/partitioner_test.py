# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""The same losses on any number of devices, both ways of running."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import partitioning
from pax.checkpoints import paths
from pax.partitioning import memory
from praxis import base_layer, base_model, optimizers, pax_fiddle, schedules
from praxis.layers import linears
from praxis.pytypes import NestedMap
from tests.pax import tiny
from tests.testing import nightly

_KEY = jax.random.key(7)
_MESHES = {
  '1': ([1, 1, 1], 1),
  '2': ([1, 2, 1], 2),
  '4': ([1, 2, 2], 4),
  '8': ([2, 2, 2], 8),
  'replica1': (None, 1),
  'replica2': (None, 2),
  'replica4': (None, 4),
  'replica8': (None, 8),
}


def _partitioner(mesh, num_devices, **model_fields):
  return partitioning.partition_task(
    tiny.task(mesh, **model_fields),
    tiny.spec(tiny.batch()),
    devices=jax.devices()[:num_devices],
  )


class _Trained(NamedTuple):
  """A partitioner, its train step, and what three steps gave."""

  made: partitioning.Partitioner
  step: Any
  state: Any
  losses: list[float]
  output: Any


def _train(made, num_steps=3):
  state, step = made.initialize(_KEY), made.train_step()
  losses = []
  for i in range(num_steps):
    state, output = step(state, made.put_batch(tiny.batch(seed=i)), _KEY)
    losses.append(float(output.loss))
  return _Trained(made, step, state, losses, output)


@functools.cache
def _trained(name):
  """Compiled once for all tests; none of them may donate the state."""
  return _train(_partitioner(*_MESHES[name]))


class _TwoMatrices(base_model.BaseModel):
  """Two layers whose weights alone say how they are sharded."""

  axis: str = 'data'

  def setup(self):
    for name in ('first', 'second'):
      layer = pax_fiddle.Config(linears.Linear, input_dims=32, output_dims=32)
      layer.weight_split_dims_mapping.wt = [self.axis, 'mdl']
      self.create_child(name, layer)

  def compute_predictions(self, input_batch):
    return self.second(jnp.tanh(self.first(input_batch.x)))

  def compute_loss(self, predictions, input_batch):
    del input_batch
    loss = jnp.square(predictions).mean()
    return NestedMap(total_loss=(loss, jnp.ones(()))), NestedMap()


@pytest.mark.parametrize(
  ('rows', 'axis'),
  [
    (('replica', 'data'), 'data'),
    (('data', 'replica'), 'replica'),
    *nightly.cases(
      (('replica', 'data'), 'replica'), (('data', 'replica'), 'data')
    ),
  ],
)
def test_rows_and_weights_share_an_axis(axis, rows):
  shape = (8, 4, 32)
  x = np.random.default_rng(0).normal(size=shape).astype(np.float32)

  def trained(mesh, num_devices):
    task_p = tiny.task(mesh)
    task_p.model = pax_fiddle.Config(_TwoMatrices, name='model', axis=axis)
    task_p.model.ici_mesh_shape = mesh
    task_p.model.mesh_axis_names = ['replica', 'data', 'mdl']
    task_p.train.inputs_split_mapping = NestedMap(map_3d=(rows, None, None))
    task_p.train.learner.optimizer = optimizers.Sgd.config(
      learning_rate=1.0, lr_schedule=pax_fiddle.Config(schedules.Constant)
    )
    batch = NestedMap(x=x)
    made = partitioning.partition_task(
      task_p, tiny.spec(batch), devices=jax.devices()[:num_devices]
    )
    state = made.initialize(_KEY)
    state, _ = made.train_step()(state, made.put_batch(batch), _KEY)
    return jax.device_get(state.mdl_vars)

  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
    trained([2, 2, 2], 8),
    trained([1, 1, 1], 1),
  )


def test_averaged_steps_have_variable_norms():
  task = tiny.task([1, 1, 1])
  task.train.set(summary_interval_steps=4, summary_accumulate_interval_steps=2)
  made = partitioning.partition_task(
    task, tiny.spec(tiny.batch()), devices=jax.devices()[:1]
  )
  state, step = made.initialize(_KEY), made.train_step()
  norms = []
  for i in range(3):
    state, output = step(state, made.put_batch(tiny.batch(seed=i)), _KEY)
    norms.append(float(output.summary_tensors['vars/params/second/w_scalar']))
  assert [norm > 0 for norm in norms] == [True, False, True]


@pytest.mark.parametrize(
  'name',
  [
    '2',
    '4',
    '8',
    *nightly.cases('replica1'),
    'replica2',
    'replica4',
    *nightly.cases('replica8'),
  ],
)
def test_losses_are_those_of_one_device(name):
  _, _, state, losses, output = _trained(name)
  alone = _trained('1')
  np.testing.assert_allclose(losses, alone.losses, rtol=1e-5)
  for mine, wanted in zip(
    jax.tree.leaves(state), jax.tree.leaves(alone.state), strict=True
  ):
    np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-6)
  value, weight = output.weighted_scalars.total_loss
  np.testing.assert_allclose((value, weight), (losses[-1], 7.0), rtol=1e-6)
  assert not output.per_example_out


def test_fewer_rows_than_devices_are_spread():
  def losses(mesh):
    made = partitioning.partition_task(
      tiny.task(mesh),
      tiny.spec(tiny.batch(rows=6)),
      devices=jax.devices()[: mesh[1]],
    )
    state, step = made.initialize(_KEY), made.train_step()
    found = []
    for i in range(2):
      batch = made.put_batch(tiny.batch(rows=6, seed=i))
      state, output = step(state, batch, _KEY)
      found.append(float(output.loss))
    return found, step.compiled.as_text()

  (got, text), (wanted, whole) = losses([1, 8, 1]), losses([1, 1, 1])
  np.testing.assert_allclose(got, wanted, rtol=1e-5)
  # The hidden values of one row, not of all.
  assert 'f32[6,16]' in whole
  assert 'f32[6,16]' not in text and 'f32[1,16]' in text


def test_state_lies_as_told():
  made = _trained('8').made
  state = made.initialize(_KEY)
  for array, spec in zip(
    jax.tree.leaves(state), jax.tree.leaves(made.state_metadata), strict=True
  ):
    assert (array.shape, array.dtype) == (spec.shape, spec.dtype)
    assert array.sharding.is_equivalent_to(spec.sharding, array.ndim)
  first = state.mdl_vars['params']['first']['linear']['w']
  assert first.addressable_shards[0].data.shape == (4, 8)


def test_spmd_splits_the_batch_and_reduces_over_it():
  # Two devices along the axis of the batch, none along that of the model.
  assert 'all-reduce' in _trained('2').step.compiled.as_text()
  assert 'all-reduce' not in _trained('1').step.compiled.as_text()


def test_replicas_reduce_gradients_only():
  text = _trained('replica4').step.compiled.as_text()
  assert 'all-reduce' in text
  assert 'all-gather' not in text


def test_state_is_donated():
  made, step, state, _, _ = _trained('1')
  before = jax.tree.map(jnp.copy, state)
  step(before, made.put_batch(tiny.batch()), _KEY)
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.mdl_vars))


def test_a_step_is_compiled_once():
  made, step, state, _, _ = _trained('replica2')
  compiled = step.compiled
  state = jax.tree.map(jnp.copy, state)
  step(state, made.put_batch(tiny.batch()), jax.random.key(8))
  assert step.compiled is compiled


def test_eval_takes_other_shapes_and_raw_keys():
  made = _partitioner([1, 2, 1], 2)
  state = made.initialize(jax.random.PRNGKey(0))
  batch = tiny.batch(rows=4)
  step = made.eval_step(tiny.spec(batch))
  output = step(
    state.to_eval_state(), made.put_batch(batch), jax.random.PRNGKey(0)
  )
  assert output.per_example_out.error.shape == (4,)
  assert not jax.tree.leaves(state)[0].is_deleted()


def test_replicas_eval_rows_in_order():
  made, _, state, _, _ = _trained('replica4')
  batch = tiny.batch()
  output = made.eval_step()(state.to_eval_state(), made.put_batch(batch), _KEY)
  params = jax.device_get(state.mdl_vars['params'])
  first = params['first']
  hidden = batch.x @ first['linear']['w'] + first['bias']['b']
  hidden = np.maximum(hidden, 0.0)
  error = np.square((hidden @ params['second']['w'])[:, 0] - batch.y)
  np.testing.assert_allclose(output.per_example_out.error, error, rtol=1e-4)


def test_replicas_draw_different_noise():
  made = _partitioner(None, 2, noise=1.0)
  state = made.initialize(_KEY)
  row = tiny.batch()
  for name in ('x', 'y'):
    row[name][:] = row[name][:1]
  output = made.eval_step()(state.to_eval_state(), made.put_batch(row), _KEY)
  error = np.asarray(output.per_example_out.error).reshape(2, 4)
  assert not np.allclose(error[0], error[1])


def test_unsynced_variables_are_refused_on_replicas(monkeypatch):
  monkeypatch.setattr(
    base_layer.WeightHParamsCollection, 'REQUIRES_SUM_SYNC', 'no_flag'
  )
  made = _partitioner(None, 2)
  monkeypatch.undo()
  with pytest.raises(ValueError, match='REQUIRES_MEAN_SYNC'):
    made.train_step().compile()


class _WithBatchStats(tiny.TinyModel):
  """Keeps a variable as wrapped flax modules do."""

  def setup(self):
    super().setup()
    self.stats = self.variable('batch_stats', 'calls', jnp.ones, ())

  def compute_predictions(self, input_batch):
    if not self.is_initializing() and not self.do_eval:
      self.stats.value = self.stats.value + 1.0
    return super().compute_predictions(input_batch)


def test_batch_stats_are_the_models_business():
  task_p = tiny.task([1, 1, 1])
  task_p.model.cls = _WithBatchStats
  task_p.train.learner.optimizer.decoupled_weight_decay = 0.5
  made = partitioning.partition_task(
    task_p, tiny.spec(tiny.batch()), devices=jax.devices()[:1]
  )
  state = _train(made).state
  assert float(state.mdl_vars['batch_stats']['calls']) == 1.0 + 3.0


def test_num_params_and_preflight():
  made, _, state, _, _ = _trained('4')
  assert made.num_params == 8 * 16 + 16 + 16
  report = made.preflight()
  on_first = sum(
    x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state)
  )
  assert report.state_bytes_per_device == on_first


def test_wrong_number_of_devices():
  with pytest.raises(ValueError, match='needs 4 devices and found 2.*device_'):
    _partitioner([1, 2, 2], 2)


def test_rows_that_cannot_be_dealt_out():
  with pytest.raises(ValueError, match='batch of 6 rows.*4 devices'):
    partitioning.partition_task(
      tiny.task(), tiny.spec(tiny.batch(rows=6)), devices=jax.devices()[:4]
    )


@pytest.mark.parametrize('name', [*nightly.cases('replica2'), '4'])
def test_leaves_that_are_loaded_are_not_sampled(name):
  mesh, num_devices = _MESHES[name]
  task_p = tiny.task(mesh)
  task_p.train.learner.optimizer.ema_decay = 0.5
  made = partitioning.partition_task(
    task_p, tiny.spec(tiny.batch()), devices=jax.devices()[:num_devices]
  )
  fresh = paths.flatten(made.initialize(_KEY))
  weight = 'params.first.linear.w'
  [average] = [x for x in fresh if x.endswith(f'.ema.{weight}')]
  weight = f'mdl_vars.{weight}'
  loaded = {weight: fresh[weight] + 1}
  state = made.initialize(_KEY, loaded=loaded)
  for leaf, value in paths.flatten(state).items():
    # Averages begin with what is loaded.
    shift = float(leaf in (weight, average))
    np.testing.assert_array_equal(value, fresh[leaf] + shift, err_msg=leaf)
    assert value.sharding == fresh[leaf].sharding
  state = made.initialize(_KEY, loaded=loaded, discard_opt_states=True)
  assert state.opt_states == []
  state = made.initialize(_KEY, loaded=fresh)
  assert all(x is fresh[leaf] for leaf, x in paths.flatten(state).items())
  np.testing.assert_array_equal(
    made.initialize_leaf(_KEY, average), fresh[weight]
  )


def test_memory_is_checked_for_what_is_not_loaded(monkeypatch):
  made = _partitioner([1, 1, 1], 1)
  state = made.initialize(_KEY)
  leaves = paths.flatten(state)
  largest = max(leaves, key=lambda x: leaves[x].nbytes)
  # Enough for the others only, as on a device that has the largest one.
  free = sum(x.nbytes for x in leaves.values()) - leaves[largest].nbytes
  monkeypatch.setattr(memory, '_free_bytes', lambda devices: free)
  made.initialize(_KEY, loaded={largest: leaves[largest]})
  with pytest.raises(ValueError, match='the train state needs'):
    made.initialize(_KEY)
  with pytest.raises(ValueError, match='the train state needs'):
    made.preflight(discard_opt_states=True)
