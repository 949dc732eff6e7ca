# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//paxml:modules,//tests/integration:experiments
# bazel: deps=//tests/paxml:app_script
"""The functions of paxml's binary, and a script that calls them."""

from __future__ import annotations

import json
import pathlib
import types

import pytest
from absl import flags

from pax import jobs
from pax.paxml_api import experiment_runs
from pax.runner.options import UsageError
from paxml import main
from tests.integration import binary, experiments
from tests.testing import programs

_NAME = 'tests.integration.experiments.TinySpmd'


@pytest.fixture
def set_flags():
  """Sets flags of absl for one test."""
  values = flags.FLAGS
  previous = {name: values[name].value for name in values}

  def set_values(**changes):
    for name, value in changes.items():
      values[name].value = value

  yield set_values
  set_values(**previous)


@pytest.fixture
def runs(monkeypatch):
  """The arguments of each run; runs return the code in `code`."""
  record = types.SimpleNamespace(calls=[], code=0)

  def run(*args, **kwargs):
    record.calls.append((args, kwargs))
    return record.code

  monkeypatch.setattr(jobs, 'run_with_options', run)
  return record


def test_a_script_with_its_own_app_run(tmp_path):
  words = [
    'tests.paxml.app_script',
    f'--exp={_NAME}',
    f'--job_log_dir={tmp_path}',
    '--steps=3',
    '--noenable_checkpoint_saving',
    '--tensorstore_use_ocdbt',
  ]
  env = programs.environment()
  completed = programs.Program(words, env, binary.PRELOADED).wait()
  assert completed.returncode == 0, completed.stderr
  assert not (tmp_path / 'checkpoints').exists()
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config and 'step 3/3' in completed.stdout + completed.stderr


def test_get_experiment():
  assert main.get_experiment(_NAME) is experiments.TinySpmd
  with pytest.raises(ValueError, match='NoSuchExperiment'):
    main.get_experiment('NoSuchExperiment')


def test_create_experiment_config(set_flags):
  with pytest.raises(UsageError, match='which experiment'):
    main.create_experiment_config()
  set_flags(exp=_NAME)
  experiment = main.create_experiment_config()
  assert isinstance(experiment, experiments.TinySpmd)


def test_run_experiment_takes_mode_from_the_flags(set_flags, runs, tmp_path):
  statuses = []
  unit = types.SimpleNamespace(set_task_status=statuses.append)
  set_flags(mode='decode_once', restore_checkpoint_step=[4, 8], exp=_NAME)
  experiment = experiments.TinySpmd()
  main.run_experiment(experiment, unit, tmp_path, len, False)
  (((options, passed), kwargs),) = runs.calls
  assert passed is experiment
  assert kwargs == {'early_stopping_fn': len}
  assert options.mode == 'decode_once'
  assert options.restore_checkpoint_step == (4, 8)
  assert options.job_log_dir == str(tmp_path)
  assert not options.enable_checkpoint_saving
  assert statuses == [f'decode_once {_NAME} at {tmp_path}']


@pytest.mark.parametrize(
  ('code', 'error', 'text'),
  [(3, FloatingPointError, 'diverged'), (75, SystemExit, '75')],
)
def test_trials_end_by_an_error(runs, tmp_path, code, error, text):
  runs.code = code
  with pytest.raises(error, match=text):
    main.run_experiment(experiments.TinySpmd(), None, tmp_path)


def test_run_exits_with_the_code_of_a_job_that_is_not_done(set_flags, runs):
  set_flags(job_log_dir='/job')
  main.run(experiments.TinySpmd(), startup_random_jitter_max_secs=5)
  ((options, _), _) = runs.calls[0]
  assert options.startup_random_jitter_max_secs == 5
  runs.code = 75
  with pytest.raises(SystemExit) as error:
    main.run(experiments.TinySpmd())
  assert error.value.code == 75


def test_search_points_are_tuned_in_this_process(set_flags, runs, monkeypatch):
  searches = []
  monkeypatch.setattr(
    experiment_runs.tune,
    'tune',
    lambda *args, **kw: searches.append((args, kw)),
  )
  set_flags(job_log_dir='/job', num_trials=3, metrics_from='train')
  experiment = experiments.TinySweep()
  main.run(experiment)
  ((args, kwargs),) = searches
  assert args == (
    main.run_experiment,
    experiment,
    None,
    pathlib.Path('/job'),
    None,
  )
  assert kwargs == {
    'is_metric_reporting_role': True,
    'max_num_trials': 3,
    'running_mode': 'train',
  }
  assert not runs.calls


def test_a_search_needs_a_directory(set_flags):
  set_flags()
  with pytest.raises(UsageError, match='needs a --job_log_dir'):
    main.run(experiments.TinySweep())


@pytest.mark.parametrize(
  ('name', 'value'),
  [('enable_auto_sharding', True), ('tuner_group', 'group')],
)
def test_unsupported_flags(set_flags, name, value):
  set_flags(**{name: value})
  with pytest.raises(UsageError, match=f'--{name} is not supported: '):
    experiment_runs.options_from_flags()


def test_wait_with_random_jitter(monkeypatch):
  waits = []
  monkeypatch.setattr(experiment_runs.time, 'sleep', waits.append)
  main.wait_with_random_jitter(min_secs=3, max_secs=3)
  assert waits == [3]
