# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Parts, defaults and train states of a task."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from pax import (
  base_metrics,
  checkpoints,
  learners,
  tasks_lib,
  train_states,
)
from praxis import base_layer, pax_fiddle
from tests.pax import tiny

_DEFAULTS = {
  'num_train_steps': 1e7,
  'save_interval_steps': 5000,
  'save_keep_interval_duration': '12h',
  'save_max_to_keep': 10,
  'max_inflight_steps': 2,
  'summary_interval_steps': 100,
  'log_train_output_interval_steps': None,
  'summary_accumulate_interval_steps': None,
  'async_summary_writing': True,
  'variable_norm_summary': True,
  'eval_interval_steps': 100,
  'eval_skip_train': False,
  'eval_use_ema_states': False,
  'decode_use_ema_states': False,
  'inputs_split_mapping': None,
  'decode_interval_steps': None,
  'decode_start_after_n_steps': 0,
  'compute_steps_per_sec_interval_steps': 10,
  'profiler_num_steps': 2,
  'profiler_min_duration_sec': 1.0,
  'profiler_capture_step': None,
  'profiler_max_num_hosts': None,
  'profiler_capture_host_profile': False,
  'always_use_train_for_model_init': True,
  'enforce_input_specs': True,
  'random_seed': 1234,
  'tensorstore_metadata_key': None,
  'enable_input_checkpointing': False,
  'restore_transformations': None,
  'external_checkpoint_path': None,
  'external_checkpoint_handler': None,
  'report_progress_hook': False,
  'gc_interval_steps': 0,
  'max_consecutive_nonfinite_steps': 50,
  'detect_nan': 'locate',
}


def test_train_defaults():
  train = tiny.task().train
  assert {name: getattr(train, name) for name in _DEFAULTS} == _DEFAULTS
  assert list(train.apply_mutable_list) == [
    'aux_loss',
    'summaries',
    'non_trainable',
    'batch_stats',
    'params_axes',
  ]


def test_other_defaults():
  task = pax_fiddle.Config(tasks_lib.SingleTask)
  assert list(task.decode.apply_mutable_list) == ['decoder_cache', 'summaries']
  assert task.decode.metrics_prefix == 'Metrics/'
  assert task.evaluate.random_seed == task.infer.random_seed == 1234
  assert (task.vn.vn_scale, task.vn.vn_regex) == (0.0, '')
  assert task.summary_verbosity == 3
  assert task.metrics is task.infer_writer is task.early_stopping_fn is None


def test_older_names_of_the_parts():
  train = tasks_lib.SingleTask.TrainHParams(num_train_steps=5)
  assert isinstance(train, tasks_lib.SingleTask.TrainHParams)
  task_p = tiny.task()
  train.learner = task_p.train.learner
  task_p.train = train
  assert task_p.Instantiate().train.num_train_steps == 5


def test_misspelt_field_has_a_hint():
  with pytest.raises(AttributeError, match='num_train_steps'):
    tiny.task().train.num_trian_steps = 3


def test_learner_and_loss():
  task = tiny.task().Instantiate()
  assert [learner.name for learner in task.learners] == ['learner_0']
  assert task.loss_aggregator_inst.loss_key == 'total_loss'
  assert isinstance(task.metrics_aggregator, base_metrics.MeanMetrics)
  assert not task.has_ema_decay


def test_loss_is_named_once():
  task_p = tiny.task()
  task_p.loss_aggregator = base_metrics.LossAggregator.config(loss_key='x')
  with pytest.raises(ValueError, match='got both'):
    task_p.Instantiate()
  task_p.train.learner.loss_name = None
  assert task_p.Instantiate().loss_aggregator_inst.loss_key == 'x'
  task_p.loss_aggregator = None
  with pytest.raises(ValueError, match='got neither'):
    task_p.Instantiate()


def test_what_a_task_refuses():
  task_p = tiny.task()
  task_p.model = 3
  with pytest.raises(ValueError, match='BaseModel or its Config, got 3'):
    task_p.Instantiate()
  task_p = tiny.task()
  task_p.train.learner = [task_p.train.learner]
  with pytest.raises(ValueError, match='one Config'):
    task_p.Instantiate()
  task_p = tiny.task()
  task_p.early_stopping_fn = 'foo'
  with pytest.raises(ValueError, match="function, .*, or None, got 'foo'"):
    task_p.Instantiate()


def _declared(task):
  return task.model.abstract_init_with_metadata(tiny.spec(tiny.batch()))


def test_shapes_are_those_of_the_state():
  task = tiny.task().Instantiate()
  declared = _declared(task)
  batch = jax.tree.map(jnp.asarray, tiny.batch())
  variables = task.model.init(jax.random.key(0), batch)
  state = task.create_train_state(variables, declared)
  shapes = task.create_train_state_unpadded_shapes(declared)
  assert jax.tree.structure(shapes) == jax.tree.structure(state)
  for shape, array in zip(
    jax.tree.leaves(shapes), jax.tree.leaves(state), strict=True
  ):
    assert (shape.shape, shape.dtype) == (array.shape, array.dtype)
  assert state.step.dtype == np.uint32
  assert task.create_train_state(variables, declared, True).opt_states == []


def test_partition_specs_are_those_of_the_weights():
  task = tiny.task([1, 2, 2]).Instantiate()
  declared = _declared(task)
  specs = task.create_train_state_partition_specs(declared)
  shapes = task.create_train_state_unpadded_shapes(declared)
  assert jax.tree.structure(specs) == jax.tree.structure(shapes)
  first = specs.mdl_vars[base_layer.PARAMS]['first']
  assert first['linear']['w'] == PartitionSpec('data', 'mdl')
  assert specs.step == PartitionSpec()
  without_mesh = tiny.task().Instantiate()
  assert without_mesh.create_train_state_partition_specs(declared) is None


def test_partition_specs_of_states_by_their_shapes():
  task = tiny.task([1, 2, 2]).Instantiate()
  declared = _declared(task)
  shapes = task.create_train_state_unpadded_shapes(declared)
  create = lambda learner, opt_states: tasks_lib.create_state_partition_specs(
    declared,
    [1, 2, 2],
    ['replica', 'data', 'mdl'],
    False,
    [learner],
    opt_states,
  )
  specs = task.create_train_state_partition_specs(declared)
  assert create(task.learners[0], shapes.opt_states) == specs

  class OptaxLearner(learners.Learner):
    def get_grad_tx(self, var_weight_hparams):
      return optax.trace(0.9)

  learner = OptaxLearner(name='learner', optimizer=task.learners[0].optimizer)
  trace = optax.TraceState(shapes.mdl_vars)
  specs = create(learner, [trace])
  assert specs.opt_states[0].trace == specs.mdl_vars
  with pytest.raises(ValueError, match='opt_states must be given'):
    create(learner, None)


def test_rules_load_variables_of_another_checkpoint(tmp_path):
  task = tiny.task().Instantiate()
  batch = jax.tree.map(jnp.asarray, tiny.batch())
  create = lambda seed: task.create_train_state(
    task.model.init(jax.random.key(seed), batch), _declared(task)
  )
  state = create(0)
  provenance = train_states.build_train_state_provenance(state)
  unchanged = task.apply_init_checkpoint_rules(state, provenance)
  assert unchanged == (state, provenance, False)

  saver = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(), str(tmp_path)
  )
  saver.save(3, create(1), force=True)
  saver.close()
  task.train.init_from_checkpoint_rules = {
    str(tmp_path): tasks_lib.CheckpointLoadingRules(
      task_p=tiny.task(), load_rules=[tasks_lib.LOAD_ALL]
    )
  }
  loaded, origins, needs_opt_states = task.apply_init_checkpoint_rules(
    state, provenance
  )
  for value, expected in zip(
    tiny.weights(loaded), tiny.weights(create(1)), strict=True
  ):
    np.testing.assert_array_equal(value, expected)
  assert needs_opt_states
  assert {x.checkpoint_step for x in jax.tree.leaves(origins.mdl_vars)} == {3}


def test_networks_of_folders_are_no_rules():
  task = tiny.task().Instantiate()
  assert not task.init_from_checkpoint_rules()
  task.train.init_networks = {'teacher_lm': 'folder'}
  with pytest.raises(ValueError, match='init_networks must be empty'):
    task.init_from_checkpoint_rules()
