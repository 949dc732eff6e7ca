# SPDX-License-Identifier: Apache-2.0
"""Fields of the configuration outside of their domains."""

# bazel: size=medium
from __future__ import annotations

import math

import pytest

from pax import learners
from pax.learners import stochastic_gradients as gradients
from pax.runner import overrides, run_config
from pax.tasks.test import synthetic
from praxis import base_input, optimizers, pax_fiddle, schedules
from tests.pax import tiny

Config = pax_fiddle.Config


def _tree(*settings):
  tree = Config(
    run_config.RunConfig,
    task=tiny.task(mesh=[1, 1, 1]),
    train_input=Config(base_input.BaseInput, batch_size=4),
  )
  overrides.set_fields(tree, overrides.parse(settings))
  return tree


@pytest.mark.parametrize(
  'setting',
  [
    'task.train.num_train_steps=-5',
    'task.train.num_train_steps=4.5',
    'task.train.num_train_steps=None',
    'task.train.num_train_steps=nan',
    'task.train.num_train_steps=inf',
    'task.train.save_interval_steps=0',
    'task.train.save_max_to_keep=0',
    'task.train.save_max_to_keep=-1',
    'task.train.save_keep_interval_duration=-1h',
    'task.train.summary_interval_steps=0',
    'task.train.eval_interval_steps=-1',
    'task.train.decode_interval_steps=-1',
    'task.train.compute_steps_per_sec_interval_steps=0',
    'task.train.learner.optimizer.learning_rate=nan',
    'task.train.learner.optimizer.ema_decay=1.5',
    'train_input.batch_size=0',
    'task.model.ici_mesh_shape=[1,0,1]',
    'task.model.ici_mesh_shape=[1,1]',
    'task.model.dcn_mesh_shape=[1,1]',
  ],
)
def test_invalid(setting):
  tree = _tree(setting)
  with pytest.raises(ValueError, match='must (be|have) .*, got') as caught:
    run_config.check_domains(tree)
  name = setting.partition('=')[0].rpartition('.')[2]
  assert name in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('config', 'field', 'value'),
  [
    (Config(optimizers.Sgd), 'clip_gradient_norm_to_value', -1.0),
    (Config(optimizers.Sgd), 'clip_gradient_single_norm_to_value', -1.0),
    (Config(optimizers.Sgd), 'l2_regularizer_weight', math.nan),
    (Config(optimizers.ShardedAdafactor), 'beta1', 1.5),
    (Config(optimizers.DistributedShampoo), 'beta2', 1.5),
    (Config(optimizers.DistributedShampoo), 'preconditioning_compute_steps', 0),
    (Config(optimizers.DistributedShampoo), 'statistics_compute_steps', 0),
    (Config(optimizers.ShardedStaticAccumulator), 'num_sub_batches', 1.5),
    (Config(learners.Learner), 'skip_step_gradient_norm_value', -1.0),
    (Config(gradients.DpSgdStochasticGradient), 'noise_multiplier', -1.0),
    (Config(gradients.DpSgdStochasticGradient), 'inner_batch_size', -2),
    (Config(gradients.DpSgdStochasticGradient), 'delta', 2.0),
    (Config(gradients.MicrobatchDpSgdStochasticGradient), 'microbatch_size', 0),
    (Config(gradients.PercoreClippedDpSgdGradient), 'noise_multiplier', -1.0),
    (Config(schedules.Constant), 'value', math.nan),
    (Config(schedules.Transformer), 'model_dim', 0),
    (Config(schedules.LinearRampupCosineDecay), 'max', math.nan),
  ],
)
def test_values_with_which_training_would_silently_fail(config, field, value):
  tree = _tree()
  tree.task.train.learner = config
  run_config.check_domains(tree)
  setattr(config, field, value)
  with pytest.raises(ValueError, match=rf'learner\.{field} must be .*, got'):
    run_config.check_domains(tree)


@pytest.mark.parametrize(
  'setting',
  [
    'task.train.num_train_steps=0',
    'task.train.num_train_steps=1e9',
    'task.train.save_interval_steps=1000.0',
    'task.train.save_max_to_keep=None',
    'task.train.save_keep_interval_duration=1.5d',
    'task.train.save_keep_interval_duration=90',
    'task.train.save_keep_interval_duration=None',
    'task.train.eval_interval_steps=0',
    'task.train.eval_interval_steps=None',
    'task.train.learner.optimizer.learning_rate=-0.1',
    'train_input.batch_size=None',
    'task.model.ici_mesh_shape=None',
  ],
)
def test_valid(setting):
  run_config.check_domains(_tree(setting))


def test_the_message_proposes_a_value():
  tree = _tree('task.train.save_max_to_keep=0')
  with pytest.raises(ValueError, match='--set task.train.save_max_to_keep=10$'):
    run_config.check_domains(tree)
  tree.task.train.save_max_to_keep = math.nan
  with pytest.raises(ValueError, match='got nan'):
    run_config.check_domains(tree)


class Experiment(synthetic.SyntheticClassifier):
  """Returns a task and inputs of the test."""

  TASK = None
  DATASETS = None

  def task(self):
    return self.TASK

  def datasets(self):
    return self.DATASETS


_TASK = synthetic.SyntheticClassifier().task()
_DATASETS = synthetic.SyntheticClassifier().datasets()


@pytest.mark.parametrize(
  ('task', 'datasets', 'message'),
  [
    (None, _DATASETS, r'\.task\(\) must return .*, got None; end task\(\)'),
    (_TASK.Instantiate(), _DATASETS, 'got a SingleTask; .* do not instantiate'),
    (_TASK, None, r'\.datasets\(\) must return a list .*, got None; end it'),
    (
      _TASK,
      _DATASETS[0],
      r'\.datasets\(\) must return a list .*, got a Config',
    ),
    (_TASK, [base_input.BaseInput], 'got a type; end it'),
    (
      _TASK,
      [_DATASETS[0].Instantiate()],
      'got a ClusteredPoints; .* do not instantiate',
    ),
  ],
)
def test_what_an_experiment_returns_is_checked(
  task, datasets, message, monkeypatch
):
  monkeypatch.setattr(Experiment, 'TASK', task)
  monkeypatch.setattr(Experiment, 'DATASETS', datasets)
  with pytest.raises(ValueError, match=message) as error:
    run_config.from_experiment(Experiment())
  assert '\n' not in str(error.value)


def test_inputs_may_be_generated(monkeypatch):
  monkeypatch.setattr(Experiment, 'TASK', _TASK)
  monkeypatch.setattr(Experiment, 'datasets', lambda self: iter(_DATASETS))
  tree = run_config.from_experiment(Experiment())
  assert [config.name for config in tree.eval_inputs] == ['held_out']


@pytest.mark.parametrize('setting', ['task=None', 'task.train=None'])
def test_a_task_without_its_configs_is_named(setting):
  name = setting.partition('=')[0]
  experiment = synthetic.SyntheticClassifier()
  with pytest.raises(ValueError, match=f'^{name} must be .*, got None'):
    run_config.from_experiment(
      experiment, overrides.parse([setting])
    ).task.Instantiate()
