# SPDX-License-Identifier: Apache-2.0
"""Steps and state shapes of paxml.trainer_lib equal those of a run."""

# bazel: size=medium
from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import checkpoints, partitioning, tasks_lib
from paxml import trainer_lib
from praxis import base_input, pax_fiddle, py_utils
from praxis.pytypes import NestedMap
from tests.pax import tiny

MESH = [1, 2, 2]
_jit = functools.partial(
  jax.jit, compiler_options={'xla_backend_optimization_level': 0}
)


class Rows(base_input.BaseInput):
  def get_next(self):
    return tiny.batch(rows=self.batch_size)


@pytest.fixture(scope='module')
def task():
  return tiny.task().Instantiate()


def test_a_step_by_hand(task):
  batch = jax.tree.map(jnp.asarray, tiny.batch())
  key = jax.random.key(0)
  state, provenance = trainer_lib.initialize_model_state(
    task, key, tiny.spec(batch)
  )
  origin = provenance.mdl_vars['params']['second']['w']
  assert repr(origin) == '"random_init"'
  params = jax.tree.map(np.asarray, state.mdl_vars['params'])
  step = _jit(
    lambda state, batch: trainer_lib.train_step_single_learner(
      task, state, key, batch
    )
  )
  new, out = step(state, batch)
  error = np.square(tiny.guess(params, batch.x) - batch.y) * batch.weights
  np.testing.assert_allclose(out.loss, error.sum() / 7, rtol=1e-5)
  assert int(new.step) == 1
  _, evaluated = _jit(
    functools.partial(trainer_lib.eval_step_single_learner, task)
  )(state, key, batch)
  np.testing.assert_allclose(evaluated.loss, error.sum() / 7, rtol=1e-5)
  hparams = task.model.abstract_init_with_metadata(batch)
  (_, decoded, _), _ = _jit(
    lambda state: trainer_lib.decode_step(
      task.model, state, key, hparams, batch
    )
  )(state)
  np.testing.assert_allclose(
    decoded.guess, tiny.guess(params, batch.x), rtol=1e-5
  )
  without, _ = trainer_lib.initialize_model_state(
    task, key, tiny.spec(batch), discard_opt_states=True
  )
  assert not without.opt_states


def test_what_is_known_of_a_state(task):
  spec = tiny.spec(tiny.batch())
  found = trainer_lib.create_train_state_metadata(task, spec)
  assert found.partition_specs is None
  split = trainer_lib.create_train_state_metadata(
    tiny.task(MESH).Instantiate(), spec
  )
  mine = split.partition_specs.mdl_vars['params']['second']['w']
  assert tuple(mine) == ('mdl', 'data')
  shape = split.unpadded_global_shapes.mdl_vars['params']['second']['w'].shape
  assert shape == (16, 1)
  assert split.var_weight_hparams['params']['second']['w'].full_shape == shape


def test_which_variables_are_left_out(task):
  hparams = task.model.abstract_init_with_metadata(tiny.spec(tiny.batch()))
  for keeps in (False, True):
    config = tiny.task()
    config.train.learner.bprop_variable_exclusion = 'params/first/.*'
    config.train.learner.keep_optimizer_state_for_excluded_vars = keeps
    (learner,) = config.Instantiate().learners
    gradient, state = trainer_lib.get_excluded_var_masks(hparams, learner)
    assert gradient['params']['first']['bias']['b']
    assert not gradient['params']['second']['w']
    assert state['params']['first']['bias']['b'] is not keeps
    assert gradient['non_trainable']['seen']
    # Upstream keeps the state of all variables.
    assert state['non_trainable']['seen'] is not keeps


def test_shapes_of_inputs(task):
  config = pax_fiddle.Config(Rows, name='rows', batch_size=4)
  host, everywhere = trainer_lib.get_inputs_shape_dtype(config)
  assert host.x == everywhere.x == jax.ShapeDtypeStruct((4, 8), jnp.float32)
  provider = types.SimpleNamespace(get_input_specs=lambda: host)
  for one in (task, tiny.task(MESH).Instantiate()):
    found = trainer_lib.get_train_input_specs_for_model_init(one, provider)
    assert found == host


def test_pmap_by_hand(task):
  """As the finetuning notebooks of models written for paxml do it."""
  batch = jax.tree.map(jnp.asarray, tiny.batch())
  key, count = jax.random.key(0), 8
  state, _ = trainer_lib.initialize_model_state(task, key, batch)
  replicated = trainer_lib.replicate_model_state(state)
  assert replicated.mdl_vars['params']['second']['w'].shape == (count, 16, 1)
  also = trainer_lib.initialize_replicate_model_state(task, key, batch)
  jax.tree.map(np.testing.assert_array_equal, also, replicated)

  @functools.partial(jax.pmap, axis_name='batch')
  def train_step(states, prng_key, inputs):
    return trainer_lib.train_step_single_learner(task, states, prng_key, inputs)

  @functools.partial(jax.pmap, axis_name='batch')
  def eval_step(states, prng_key, inputs):
    return trainer_lib.eval_step_single_learner(
      task, states.to_eval_state(), prng_key, inputs
    )

  rows = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
  keys = jax.random.split(key, count)
  _, evaluated = eval_step(replicated, keys, rows)
  new, out = train_step(replicated, keys, rows)
  params = jax.device_get(state.mdl_vars['params'])
  error = np.square(tiny.guess(params, batch.x) - batch.y)
  loss = (error * batch.weights).sum() / 7
  for output in (evaluated, out):
    output = py_utils.maybe_unreplicate_for_fully_replicated(output)
    np.testing.assert_allclose(output.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(output.per_example_out.error, error, rtol=1e-4)
  one_device, _ = _jit(
    lambda state: trainer_lib.train_step_single_learner(task, state, key, batch)
  )(state)
  new = py_utils.maybe_unreplicate_for_fully_replicated(new)
  for array, wanted in zip(
    jax.tree.leaves(new), jax.tree.leaves(one_device), strict=True
  ):
    np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-6)


def test_replicas_of_one_device_are_unreplicated():
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('batch',))
  sharding = jax.NamedSharding(mesh, jax.P('batch'))
  row = jax.device_put(np.ones([1, 3]), sharding)
  assert py_utils.maybe_unreplicate_for_fully_replicated(row).shape == (3,)
  replicated = jax.device_put(np.ones([1, 3]), jax.NamedSharding(mesh, jax.P()))
  for kept in (replicated, jnp.ones([1, 3])):
    shape = py_utils.maybe_unreplicate_for_fully_replicated(kept).shape
    assert shape == (1, 3)


def test_gradients_and_model_of_a_user(task):
  batch = jax.tree.map(jnp.asarray, tiny.batch())
  key = jax.random.key(0)
  state, _ = trainer_lib.initialize_model_state(task, key, batch)
  seen = []

  def apply_fn(model, variables, inputs, mutable, rngs):
    seen.append(sorted(rngs))
    return model.apply(variables, inputs, mutable=mutable, rngs=rngs)

  def grad_fn(loss_fn, learner, mdl_vars, inputs, prng_key):
    assert learner is task.learners[0]
    values, grads = jax.value_and_grad(loss_fn, has_aux=True, allow_int=True)(
      mdl_vars, inputs, prng_key
    )
    return values, jax.tree.map(jnp.zeros_like, grads)

  def step(**hooks):
    run = lambda state: trainer_lib.train_step_single_learner(
      task, state, key, batch, jnp.float32, None, None, **hooks
    )
    return _jit(run)(state)

  (normal, _), (same, _) = step(), step(apply_fn=apply_fn)
  jax.tree.map(np.testing.assert_array_equal, normal, same)
  assert seen == [['dropout', 'params', 'random']]
  still, output = step(grad_fn=grad_fn)
  grad_norm = output.summary_tensors['learning/raw_grad_norm_aggregate_scalar']
  assert float(grad_norm) == 0.0
  assert float(still.mdl_vars['non_trainable']['seen']) == 8.0
  weights = still.mdl_vars['params']['second']['w']
  assert not np.array_equal(weights, normal.mdl_vars['params']['second']['w'])


def test_bfloat16_is_the_callers_choice(task):
  batch = jax.tree.map(jnp.asarray, tiny.batch())
  key = jax.random.key(0)
  state, _ = trainer_lib.initialize_model_state(task, key, batch)
  (_, exact), (_, rounded) = (
    _jit(
      functools.partial(
        trainer_lib.eval_step_single_learner, task, fprop_dtype=dtype
      )
    )(state, key, batch)
    for dtype in (jnp.float32, jnp.bfloat16)
  )
  assert float(exact.loss) != float(rounded.loss)
  np.testing.assert_allclose(exact.loss, rounded.loss, rtol=5e-2)
  assert rounded.per_example_out.error.dtype == jnp.float32


def test_a_state_on_a_mesh(tmp_path):
  task = tiny.task(MESH).Instantiate()
  mesh = jax.sharding.Mesh(
    np.array(jax.devices()[:4]).reshape(MESH), task.model.mesh_axis_names
  )
  metadata = trainer_lib.create_train_state_metadata(
    task, tiny.spec(tiny.batch())
  )
  key = jax.random.key(0)
  state, _ = trainer_lib.initialize_partitioned_model_states(
    task, key, metadata.input_shape_dtype, metadata.partition_specs, False, mesh
  )
  weights = state.mdl_vars['params']['first']['linear']['w']
  assert weights.sharding == jax.NamedSharding(mesh, jax.P('data', 'mdl'))
  alone, provenance = trainer_lib.initialize_model_state(
    tiny.task().Instantiate(), key, metadata.input_shape_dtype
  )
  np.testing.assert_array_equal(
    weights, alone.mdl_vars['params']['first']['linear']['w']
  )
  trainer_lib.write_post_init_model_hparams_file(
    task.model, metadata, tmp_path / 'job'
  )
  text = (tmp_path / 'job' / 'post_init_model_params.txt').read_text()
  assert 'hidden : 16' in text and 'params.second.w' in text
  trainer_lib.write_train_provenance_file(provenance, tmp_path / 'job')
  text = (tmp_path / 'job' / 'train_state_provenance.txt').read_text()
  assert text.startswith('Step\n') and '"random_init"' in text


def test_a_state_from_checkpoints(tmp_path):
  key = jax.random.key(0)
  old = partitioning.partition_task(tiny.task(), tiny.spec(tiny.batch()))
  checkpointer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(asynchronous=False),
    tmp_path,
    checkpoints.CheckpointType.GDA,
  )
  checkpointer.save(3, old.initialize(jax.random.key(5)), force=True)
  checkpointer.close()
  config = tiny.task()
  config.train.init_from_checkpoint_rules = {
    str(tmp_path): tasks_lib.CheckpointLoadingRules(
      task_p=tiny.task(), load_rules=[('params/first/(.*)', 'params/first/{}')]
    )
  }
  task = config.Instantiate()
  spec = tiny.spec(tiny.batch())
  without, _ = trainer_lib.initialize_model_state(
    task, key, spec, do_init_checkpoint_rules=False
  )
  state, provenance = trainer_lib.initialize_model_state(task, key, spec)
  made = partitioning.partition_task(config, spec)
  _, replicas, origins = made.initialize_prng_key_and_train_state(
    key, None, None, discard_opt_states=True
  )
  for found in (state, replicas):
    params = found.mdl_vars['params']
    np.testing.assert_array_equal(
      params['first']['linear']['w'],
      old.initialize(jax.random.key(5)).mdl_vars['params']['first']['linear'][
        'w'
      ],
    )
  for found in (provenance, origins):
    params = found.mdl_vars['params']
    assert params['first']['linear']['w'].checkpoint_step == 3
    assert params['second']['w'].checkpoint_step is None
  np.testing.assert_array_equal(
    state.mdl_vars['params']['second']['w'],
    without.mdl_vars['params']['second']['w'],
  )
  assert not replicas.opt_states


def test_specs_of_inputs():
  spec = NestedMap(
    ids=jax.ShapeDtypeStruct((8, 4), jnp.int32),
    size=jax.ShapeDtypeStruct((8,), jnp.int32),
  )
  assert trainer_lib.get_input_partition_specs(['a', 'b'], spec) == NestedMap(
    ids=jax.P(('a', 'b'), None), size=jax.P(('a', 'b'))
  )
  mapping = {'map_1d': ('a',), 'map_2d': None}
  reshard = trainer_lib.reshard_input_based_on_rank_fn
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('a',))
  step = jax.jit(
    lambda batch: jax.tree.map(lambda x: reshard(mapping, ['a'], x), batch)
  )
  batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), spec)
  bound = trainer_lib.bind_mesh(step, mesh)
  assert len(bound(batch).size.devices()) == 2
  assert 'sharding' in bound.lower(batch).as_text()
  assert reshard(None, ['a'], batch.ids) is batch.ids
  with pytest.raises(ValueError, match='Split mapping must be provided'):
    reshard(mapping, ['a'], jnp.zeros([1, 1, 1]))
  with pytest.raises(ValueError, match='first dimension'):
    trainer_lib.get_input_partition_specs(['a'], jnp.zeros([]))


def test_small_batches_are_padded():
  adjust = trainer_lib.adjust_input_params_for_small_batch
  config = lambda rows, **fields: pax_fiddle.Config(
    Rows, name='rows', batch_size=rows, num_infeed_hosts=1, **fields
  )
  assert jax.local_device_count() == 8
  for rows, padding in ((6, 2), (11, 5), (8, 0)):
    adjusted = adjust(config(rows), None)
    assert adjusted.batch_padding_size == padding
    assert len(adjusted.Instantiate().get_next_padded().x) == rows + padding
  remote = config(6, experimental_remote_input=True)
  assert adjust(remote, None) is remote


def test_names_of_inputs():
  a, b = (types.SimpleNamespace(name=name) for name in 'ab')
  trainer_lib.check_unique_names([a, b])
  with pytest.raises(ValueError, match="got 'a' for 2 inputs"):
    trainer_lib.check_unique_names([a, b, a])
