# SPDX-License-Identifier: Apache-2.0
"""What ran, written down and read again."""

# bazel: size=small
# bazel: deps=//pax/tasks:experiments
from __future__ import annotations

import json

import jax
import numpy as np
import optax
import pytest

from pax import experiment_registry, experiment_vars_summary
from pax.runner import artifacts, overrides, run_config
from praxis import optimizers, pax_fiddle
from tests.integration import experiments
from tests.pax import tiny

EXPERIMENTS = [
  'tasks.lm.params.quickstart.TinyLm',
  'tasks.lm.params.quickstart.TinyLmPmap',
  'tasks.lm.params.lm_cloud.LmCloudSpmd2BLimitSteps',
  'tasks.lm.params.lm_cloud.LmCloudSpmdPipeline9B',
  'tasks.lm.params.lm_cloud.LmCloudTransformerAdamLimitSteps',
]


def _tree(experiment):
  return run_config.from_experiment(experiment())


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_config_json_makes_the_same_tree(name):
  tree = _tree(experiment_registry.get_experiment(name))
  text = artifacts.dump_config(tree)
  again = artifacts.load_config(text)
  assert artifacts.config_text(again) == artifacts.config_text(tree)
  assert artifacts.dump_config(again) == text
  assert json.loads(text)


def test_configs_that_were_read_again_are_equal():
  """Fiddle takes seconds to compare those of a whole experiment."""
  tree = _tree(experiments.TinySpmd)
  assert artifacts.load_config(artifacts.dump_config(tree)) == tree


def test_constants_that_were_set_are_those_of_the_file(tmp_path):
  settings = overrides.parse(['NUM_STEPS=3'])
  experiment = overrides.set_constants(experiments.TinyPmap, settings)
  tree = _tree(experiment)
  artifacts.write_before_build(str(tmp_path), experiment, tree)
  text = (tmp_path / 'experiment_cls_vars.txt').read_text()
  found = experiment_vars_summary.parse(text)
  assert found['NUM_STEPS'] == 3 and found['ICI_MESH_SHAPE'] is None
  assert text.count('NUM_STEPS') == 1


def test_a_value_without_a_name_leaves_out_config_json(tmp_path, caplog):
  tree = _tree(experiments.TinySpmd)
  artifacts.write_before_build(str(tmp_path), experiments.TinySpmd, tree)
  assert (tmp_path / 'config.json').exists()
  tree.task.train.learner.optimizer = optimizers.OptaxOptimizer.config(
    grad_tx=optax.lion(1e-3), learning_rate=1e-3
  )
  artifacts.write_before_build(str(tmp_path), experiments.TinySpmd, tree)
  assert not (tmp_path / 'config.json').exists()
  assert 'grad_tx[init]' in (tmp_path / 'model_params.txt').read_text()
  assert 'config.json is not written' in caplog.text
  tree.task.train.learner.optimizer.grad_tx = pax_fiddle.Config(
    optax.lion, learning_rate=1e-3
  )
  artifacts.write_before_build(str(tmp_path), experiments.TinySpmd, tree)
  assert artifacts.load_config((tmp_path / 'config.json').read_text()) == tree


def test_config_text_tells_inputs_then_task():
  text = artifacts.config_text(_tree(experiments.TinySpmd))
  lines = text.splitlines()
  assert lines[0] == 'Train input'
  assert lines.index('Eval input held_out') < lines.index('Task')
  assert 'train.num_train_steps : 20' in lines


def test_files_of_a_run(tmp_path):
  tree = _tree(experiments.TinySpmd)
  artifacts.write_before_build(str(tmp_path), experiments.TinySpmd, tree)
  spec = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, np.dtype(x.dtype)), tiny.batch()
  )
  task = tree.task.Instantiate()
  artifacts.write_after_build(str(tmp_path), tree, task, spec)
  specs = json.loads((tmp_path / 'input_specs.json').read_text())
  assert specs['train']['x'] == {'shape': [8, tiny.DIM], 'dtype': 'float32'}
  # What a child inherited shows only here.
  after = (tmp_path / 'post_init_model_params.txt').read_text()
  assert "first._hparams.mesh_axis_names : ('replica', 'data', 'mdl')" in (
    after.replace('[', '(').replace(']', ')')
  ), after
  assert {p.name for p in tmp_path.iterdir()} == {
    'config.json',
    'experiment_cls_vars.txt',
    'input_specs.json',
    'model_params.txt',
    'post_init_model_params.txt',
  }
