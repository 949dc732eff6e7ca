# SPDX-License-Identifier: Apache-2.0
"""Experiments made by the commands of --fdl."""

# bazel: size=medium
from __future__ import annotations

import base64
import zlib

import jax.numpy as jnp
import pytest

from pax import parameterized_experiment
from pax.files import trusted_files
from pax.runner import (
  artifacts,
  command_line,
  experiments,
  fiddle_commands,
  overrides,
  run_config,
)
from pax.runner.options import RunOptions
from praxis import pax_fiddle
from tests.integration import experiments as examples

ME = __name__


def config(layers=1, *, name='mine'):
  made = examples.TinySpmd()
  task = made.task()
  task.name = name
  task.model.hidden = layers
  return pax_fiddle.Config(
    parameterized_experiment.ParameterizedExperiment,
    task=task,
    train_datasets=made.train_datasets(),
  )


def make_short(tree, steps=3):
  tree.task.train.num_train_steps = steps


def replaced(tree):
  return config(name=tree.task.name + ' again')


@pytest.fixture(autouse=True)
def importable(monkeypatch):
  """This module by a name that can be imported, however pytest did it."""
  import sys

  monkeypatch.setitem(sys.modules, 'mine_for_fdl', sys.modules[ME])


def made(*commands):
  return fiddle_commands.experiment(commands).task()


def test_a_function_with_and_without_arguments():
  assert made('config:mine_for_fdl.config').model.hidden == 1
  task = made("config:mine_for_fdl.config(7, name='x')")
  assert (task.model.hidden, task.name) == (7, 'x')


def test_changes_apply_in_order():
  task = made(
    'config:mine_for_fdl.config',
    'fiddler:mine_for_fdl.make_short(5)',
    'set:task.model.hidden=9',
    'fiddler:mine_for_fdl.make_short',
  )
  assert task.train.num_train_steps == 3 and task.model.hidden == 9
  task = made('config:mine_for_fdl.config', 'fiddler:mine_for_fdl.replaced')
  assert task.name == 'mine again'


def test_constants_of_a_class_of_experiments():
  commands = [
    'config:tests.integration.experiments.TinySpmd',
    'set:ICI_MESH_SHAPE=[1, 2, 4]',
  ]
  experiment = fiddle_commands.experiment(commands)
  assert type(experiment).__name__ == 'TinySpmd'
  assert type(experiment).ICI_MESH_SHAPE == [1, 2, 4]
  with pytest.raises(ValueError, match='no constant LAYERS'):
    fiddle_commands.experiment([commands[0], 'set:LAYERS=2'])
  with pytest.raises(ValueError, match='later; set its constants here'):
    fiddle_commands.experiment([commands[0], 'set:task.name=a'])


def test_tags_reach_all_fields():
  task = made('config:mine_for_fdl.config', 'tag:ActivationDType=jnp.bfloat16')
  assert task.model.fprop_dtype == jnp.bfloat16


def test_a_job_is_run_again_from_its_config(tmp_path):
  tree = run_config.from_experiment(examples.TinySpmd())
  file = tmp_path / 'config.json'
  file.write_text(artifacts.dump_config(tree))
  found = fiddle_commands.experiment([f'config_file:{file}'])
  assert found.task() == tree.task
  assert found.training_dataset() == tree.train_input
  packed = base64.urlsafe_b64encode(zlib.compress(file.read_bytes())).decode()
  assert made(f'config_str:{packed}') == tree.task


def test_a_file_that_others_can_write_is_not_read(tmp_path):
  file = tmp_path / 'config.json'
  tree = run_config.from_experiment(examples.TinySpmd())
  file.write_text(artifacts.dump_config(tree))
  file.chmod(0o666)
  commands = [f'config_file:{file}']
  with pytest.raises(
    trusted_files.UntrustedFileError, match='config_file: .*by all users'
  ):
    fiddle_commands.experiment(commands)
  trusting = experiments.find(None, [], commands, trust_foreign_files=True)
  assert trusting.task() == tree.task


def test_a_module_that_cannot_be_imported_is_not_missing(tmp_path, monkeypatch):
  (tmp_path / 'configs_with_fault.py').write_text('import missing_package\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ModuleNotFoundError, match='missing_package'):
    made('config:configs_with_fault.config')


@pytest.mark.parametrize(
  ('commands', 'message'),
  [
    (['confg:a.b'], 'must begin with one of config:'),
    (['set:a=1'], 'wants one config:'),
    (['config:mine_for_fdl.config', 'config:x.y'], 'wants one config:'),
    (['config:nothing_here.f'], 'there is no nothing_here.f'),
    (['config:mine_for_fdl.nothing'], 'there is no mine_for_fdl.nothing'),
    (['config:mine_for_fdl.config(x)'], 'with literals in parentheses'),
    (['config:mine_for_fdl.config(**{"a": 1})'], r'\*\* has no literals'),
    (['config_file:/nonexistent'], 'no such file'),
    (['config_str:!'], 'cannot be unpacked'),
    (['config:builtins.dict'], 'must make the Config of an experiment'),
    (['config:mine_for_fdl.config', 'set:task.no=1'], "no field 'no'"),
    (['config:mine_for_fdl.config', 'tag:Nothing=1'], 'tags are '),
  ],
)
def test_wrong_commands(commands, message):
  with pytest.raises(ValueError, match=message):
    fiddle_commands.experiment(commands)


def test_the_name_wins_and_constants_need_one():
  commands = ['config:mine_for_fdl.config']
  name = 'tests.integration.experiments.TinySpmd'
  assert type(experiments.find(name, [], commands)).__name__ == 'TinySpmd'
  with pytest.raises(ValueError, match='has no constant LAYERS'):
    experiments.find(None, overrides.parse(['LAYERS=2']), commands)
  with pytest.raises(command_line.UsageError, match='which experiment'):
    experiments.find(None, [])


def test_older_flags_are_commands():
  options = RunOptions(
    fdl_config='a.b', fdl_set=('x=1',), fiddler=('c.d',), fdl=('set:y=2',)
  )
  assert experiments.fiddle_commands_of(options) == [
    'config:a.b', 'set:y=2', 'fiddler:c.d', 'set:x=1',
  ]  # fmt: skip
