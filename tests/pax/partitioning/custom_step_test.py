# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Step functions of users, partitioned over meshes and replicas."""

from __future__ import annotations

import functools
import json

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import base_metrics, partitioning, steps
from pax.programs import running_mode
from pax.steps import single_learner
from praxis import base_input, base_layer
from praxis.pytypes import NestedMap
from tests.pax import tiny
from tests.testing import nightly

_KEY = jax.random.key(7)
_MESHES = {
  '1': ([1, 1, 1], 1),
  '8': ([2, 2, 2], 8),
  'replica1': (None, 1),
  'replica8': (None, 8),
}
RunningMode = running_mode.RunningMode


@flax.struct.dataclass
class _Args(steps.BaseStepFnStaticArgs):
  factor: float = 1.0


class _Rows(base_input.BaseInput):
  def get_next(self):
    return tiny.batch(rows=self.batch_size)


def _rows(**fields):
  return _Rows.config(**fields).Instantiate()


@functools.cache
def _made(name):
  mesh, num_devices = _MESHES[name]
  task = tiny.task(mesh).Instantiate()
  partitioner = partitioning.create_partitioner(
    task, reshard_inputs=True, devices=jax.devices()[:num_devices]
  )
  partitioner.setup(
    task, _KEY, None, _rows(name='rows', batch_size=8, num_infeed_hosts=1)
  )
  return partitioner


def _scaled_train_step(
  jax_task,
  states,
  prng_key,
  inputs,
  fprop_dtype,
  var_weight_hparams,
  static_args=None,
):
  """Trains, and scales the loss that it reports."""
  states, output = single_learner.train_step_single_learner(
    jax_task,
    states,
    prng_key,
    inputs,
    fprop_dtype=fprop_dtype,
    var_weight_hparams=var_weight_hparams,
  )
  loss = output.loss * (static_args.factor if static_args else 1.0)
  summaries = {**output.summary_tensors, 'mine_scalar': loss}
  return states, output.replace(loss=loss, summary_tensors=summaries)


def _train(name, num_steps=2):
  made = _made(name)
  key, state, _ = made.initialize_prng_key_and_train_state(_KEY, None, None)
  step, specs = made.partition(
    _scaled_train_step, made.train_inputs_shape_dtype, is_eval=False
  )
  inp = _rows(name='rows', batch_size=8)
  key = made.preprocess_prng_key(key)
  outputs = []
  for i in range(num_steps):
    batch = made.preprocess_inputs(inp, tiny.batch(seed=i), specs)
    state, output = step(state, key, batch, _Args(8, factor=2.0))
    outputs.append(output)
  return state, outputs


@functools.cache
def _trained(name):
  return _train(name)


@pytest.mark.parametrize(
  'name',
  ['8', *nightly.cases('replica1'), 'replica8'],
)
def test_a_train_step_of_a_user(name):
  state, outputs = _trained(name)
  wanted_state, wanted = _trained('1')
  for array, wanted_array in zip(
    jax.tree.leaves((state, *((o.loss, o.per_example_out) for o in outputs))),
    jax.tree.leaves(
      (wanted_state, *((o.loss, o.per_example_out) for o in wanted))
    ),
    strict=True,
  ):
    np.testing.assert_allclose(array, wanted_array, rtol=1e-4, atol=1e-6)
  output = outputs[-1]
  assert isinstance(output, steps.StepFnOutput)
  # The loss of the step, twice, also as its own summary.
  loss, _ = output.weighted_scalars.total_loss
  np.testing.assert_allclose(output.loss, 2 * loss, rtol=1e-6)
  assert float(output.summary_tensors['mine_scalar']) == float(output.loss)
  assert output.per_example_out.error.shape == (8,)
  assert output.per_example_out.error.is_fully_replicated
  assert float(state.mdl_vars['non_trainable']['seen']) == 16.0


def test_equals_the_own_train_step():
  made = _made('8')
  key, state, provenance = made.initialize_prng_key_and_train_state(
    _KEY, None, None
  )
  origin = provenance.mdl_vars['params']['second']['w']
  assert repr(origin) == '"random_init"'
  assert state.mdl_vars['params']['second']['w'].sharding == (
    made.state_metadata.mdl_vars['params']['second']['w'].sharding
  )
  losses = []
  for i in range(2):
    batch = made.put_batch(tiny.batch(seed=i))
    state, output = made.train_step()(state, batch, key)
    losses.append(2 * float(output.loss))
  found = [float(output.loss) for output in _trained('8')[1]]
  np.testing.assert_allclose(found, losses, rtol=1e-6)


@pytest.mark.parametrize(
  'name',
  [
    *nightly.cases('1'),
    '8',
    *nightly.cases('replica1'),
    'replica8',
  ],
)
def test_eval_and_decode_of_paxml(name):
  made, batch = _made(name), tiny.batch()
  state = made.initialize(_KEY, discard_opt_states=True)
  assert not state.opt_states
  guess = tiny.guess(jax.device_get(state.mdl_vars['params']), batch.x)
  error = np.square(guess - batch.y)
  for mode, wanted in (
    (RunningMode.EVAL, NestedMap(error=error)),
    (RunningMode.DECODE, NestedMap(guess=guess)),
  ):
    step_fn, is_eval = partitioning.get_step_fn(mode)
    assert is_eval
    step, _ = made.partition(step_fn, made.train_inputs_shape_dtype, True)
    # The batch of the host.
    new_state, output = step(state, _KEY, batch)
    assert new_state is None
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-4),
      dict(output.per_example_out),
      dict(wanted),
    )
  with pytest.raises(ValueError, match='exactly one'):
    partitioning.get_step_fn(RunningMode.EVAL | RunningMode.TRAIN)


@pytest.mark.parametrize('name', ['8', 'replica8'])
def test_every_replica_has_a_key_of_its_own(name):
  made = _made(name)

  def step_fn(task, state, key, inputs, dtype, hparams, static_args=None):
    assert dtype == jnp.float32 and 'params' in hparams
    number = jax.random.uniform(key)[None]
    if base_layer.is_running_under_pmap():
      axis = base_layer.PMAP_PARALLEL_AXIS_NAME
      number = jax.lax.all_gather(number, axis, tiled=True)
    return None, steps.StepFnOutput(
      jnp.float32(inputs.x.shape[0]), {}, NestedMap(number=number), {}
    )

  step, specs = made.partition(step_fn, made.train_inputs_shape_dtype, True)
  state = made.initialize(_KEY, discard_opt_states=True)
  _, output = step(state, _KEY, tiny.batch())
  numbers = set(np.asarray(output.per_example_out.number).tolist())
  if name == '8':
    assert len(numbers) == 1 and float(output.loss) == 8
    assert specs.x == jax.P(('replica', 'data'), None)
  else:
    assert len(numbers) == 8 and float(output.loss) == 1
    assert specs is None


class _WithCluMetrics(tiny.TinyModel):
  def compute_loss(self, predictions, input_batch):
    scalars, examples = super().compute_loss(predictions, input_batch)
    create = base_metrics.WeightedScalarCluMetric.create
    return NestedMap(total_loss=create(*scalars.total_loss)), examples


@pytest.mark.parametrize('name', ['1', 'replica8'])
def test_clu_metrics(name):
  mesh, num_devices = _MESHES[name]
  config = tiny.task(mesh)
  config.model.cls = _WithCluMetrics
  made = partitioning.partition_task(
    config, tiny.spec(tiny.batch()), devices=jax.devices()[:num_devices]
  )
  step_fn, _ = partitioning.get_step_fn(RunningMode.EVAL)
  step, _ = made.partition(step_fn, made.train_inputs_shape_dtype, True)
  state = made.initialize(_KEY, discard_opt_states=True)
  _, output = step(state, _KEY, tiny.batch())
  metric = output.clu_metrics['total_loss']
  np.testing.assert_allclose(metric.compute(), output.loss, rtol=1e-5)
  np.testing.assert_allclose(metric.weight, 7.0)


def test_padding_is_removed():
  made = _made('8')
  step_fn, _ = partitioning.get_step_fn(RunningMode.EVAL)
  step, _ = made.partition(step_fn, made.train_inputs_shape_dtype, True)
  state = made.initialize(_KEY, discard_opt_states=True)
  _, output = step(state, _KEY, tiny.batch(), steps.BaseStepFnStaticArgs(6))
  assert output.per_example_out.error.shape == (6,)
  lowered = step.lower(state, _KEY, made.put_batch(tiny.batch()))
  assert 'stablehlo' in lowered.as_text()


def test_a_step_with_other_outputs():
  made = _made('1')
  step, _ = made.partition(
    lambda *args: None, made.train_inputs_shape_dtype, True
  )
  state = made.initialize(_KEY, discard_opt_states=True)
  with pytest.raises(ValueError, match=r'must return \(state or None'):
    step(state, _KEY, tiny.batch())


def test_extra_state_of_a_user():
  made = _made('8')

  def step_fn(task, state, key, inputs, *rest):
    counted = (state.extra_state or (jnp.int32(0),))[0] + 1
    return state.replace(extra_state=(counted,)), steps.StepFnOutput(
      None, {}, NestedMap(), {}
    )

  step, _ = made.partition(step_fn, made.train_inputs_shape_dtype, False)
  state = made.initialize(_KEY)
  for _ in range(2):
    state, _ = step(state, _KEY, tiny.batch())
  assert int(state.extra_state[0]) == 2


def test_metadata():
  made = _made('8')
  metadata = made.get_train_state_metadata()
  assert metadata.partition_specs.mdl_vars['params']['second']['w'] == jax.P(
    'mdl', 'data'
  )
  assert metadata.input_shape_dtype.x.shape == (8, 8)
  assert metadata.unpadded_global_shapes.opt_states
  without = made.get_train_state_metadata(discard_opt_states=True)
  assert not without.partition_specs.opt_states
  # Of replicas, the batch of one device.
  replicas = _made('replica8').get_train_state_metadata()
  assert replicas.partition_specs is None
  assert replicas.input_shape_dtype.x.shape == (1, 8)


def test_setup_from_an_input(tmp_path):
  task = tiny.task([1, 2, 2]).Instantiate()
  made = partitioning.PjitPartitioner(
    False, True, task, np.array(jax.devices()[:4]).reshape(1, 2, 2)
  )
  with pytest.raises(ValueError, match='before setup'):
    _ = made.task
  inp = _rows(name='rows', batch_size=4)
  with pytest.raises(ValueError, match='exactly one'):
    made.setup(task, _KEY, tiny.spec(tiny.batch()), inp)
  made.setup(task, _KEY, None, inp, tmp_path)
  specs = json.loads((tmp_path / 'input_specs.json').read_text())
  assert specs['x'] == {'_array': {'shape': [4, 8], 'dtype': 'float32'}}
  assert made.global_mesh.shape == {'replica': 1, 'data': 2, 'mdl': 2}
  made.check_input_spec({**tiny.batch(rows=2), 'more': np.zeros([2])})
  with pytest.raises(ValueError, match='does not match train input specs'):
    made.check_input_spec(NestedMap(x=np.zeros([2, 8], np.float32)))
  config = _Rows.config(name='rows', batch_size=4)
  assert made.preprocess_input_config(config).num_infeed_hosts == 1


def test_a_partitioner_of_a_mesh_needs_its_shape_and_specs():
  task = tiny.task(None)
  task.model.mesh_axis_names = ('replica', 'data', 'mdl')
  with pytest.raises(ValueError, match='ici_mesh_shape must be .* got None'):
    partitioning.PjitPartitioner(False, True, task)
  task = tiny.task([1, 1, 1]).Instantiate()
  task.create_train_state_partition_specs = lambda hparams: None
  made = partitioning.create_partitioner(task, devices=jax.devices()[:1])
  with pytest.raises(ValueError, match='must return PartitionSpecs'):
    made.setup(task, _KEY, tiny.spec(tiny.batch()))


def test_a_restored_state_is_kept():
  made = _made('replica8')
  state = jax.device_get(made.initialize(_KEY))
  key, placed, provenance = made.initialize_prng_key_and_train_state(
    _KEY, state, None
  )
  assert provenance is None
  assert not (jax.random.key_data(key) == jax.random.key_data(_KEY)).all()
  assert placed.mdl_vars['params']['second']['w'].is_fully_replicated


def test_automatic_sharding_is_gone():
  task = tiny.task([1, 1, 1])
  with pytest.raises(NotImplementedError, match='which JAX removed; declare'):
    partitioning.create_partitioner(task, auto_sharding_mode=RunningMode.TRAIN)
  info = partitioning.AutoShardingPjitPartitioner.AutoShardingInfo
  with pytest.raises(NotImplementedError, match='AutoShardingPjitPartitioner'):
    partitioning.AutoShardingPjitPartitioner(
      False, True, task, info(_scaled_train_step, False, None, False)
    )
  with pytest.raises(NotImplementedError, match='compile_for_auto_sharding'):
    partitioning.compile_for_auto_sharding(None, None, None, None)
  # Without a mesh there is nothing to choose.
  partitioning.create_partitioner(
    tiny.task(), auto_sharding_mode=RunningMode.TRAIN
  )
