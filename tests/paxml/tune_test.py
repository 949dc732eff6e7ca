# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: deps=//paxml:modules,@pypi//pyglove
"""The tuning loop of paxml over PyGlove, an optional package."""

from __future__ import annotations

import importlib
import pathlib
import sys
from typing import Any

import pytest

from pax import automl, base_experiment
from pax.programs.running_mode import RunningMode
from pax.tasks.lm.params import quickstart
from pax.tuning import space
from paxml import automl_interfaces, tuning_lib
from praxis import base_hyperparams, pax_fiddle

pg = pytest.importorskip('pyglove')
Config = pax_fiddle.Config
REWARD = 'eval_test_dev/metrics/reward'


class Part(base_hyperparams.FiddleBaseParameterizable):
  """Stands for a task or a data set."""

  value: Any = None
  size: Any = None
  make: Any = None
  is_training: bool = False

  def __post_init__(self):
    super().__post_init__()
    if self.make is not None:
      self.made = self.make()


class Searched(base_experiment.BaseExperiment):
  """Reads three constants; a fourth is unused."""

  RATE = pg.oneof([0.1, 0.01, 0.001])
  UNUSED = pg.oneof(range(5))
  TEXT = pg.oneof(['foo', 'bar'])
  DECODED = pg.oneof(['x', 'y', 'z'])

  def task(self):
    size = pg.oneof([16, 32, 64], name='size')
    return Config(Part, value=self.RATE, size=size)

  def datasets(self):
    make = lambda: pg.oneof(range(3), name='built')
    return [Config(Part, value=self.TEXT, make=make, is_training=True)]

  def decode_datasets(self):
    make = lambda: pg.oneof(range(3), name='not_built')
    return [Config(Part, value=self.DECODED, make=make)]

  def search(self):
    return automl.SearchHParams(
      search_algorithm=Config(automl.RandomSearch, seed=1),
      search_reward=Config(
        automl.SingleObjective, metric=automl.Metric.eval('reward')
      ),
      cross_step_metric_aggregator=Config(automl.AverageMetricValues),
      max_num_trials=10,
      enable_dataset_tuning=True,
    )


class Trials:
  """Runs trials that report given rewards, one evaluation for each."""

  def __init__(self, *rewards, mode=RunningMode.EVAL):
    self.rewards, self.mode = rewards, mode
    self.experiments: list[Any] = []
    self.directories: list[pathlib.Path] = []
    self.stopped: list[bool] = []

  def __call__(self, experiment, work_unit, job_log_dir, early_stopping_fn):
    self.experiments.append(experiment.task())
    self.directories.append(job_log_dir)
    for index, reward in enumerate(self.rewards, 1):
      is_last = index == len(self.rewards)
      metrics = {REWARD: reward}
      stop = early_stopping_fn(metrics, self.mode, index * 10, is_last, None)
      self.stopped.append(stop)
      if stop:
        return


def _tune(trials, experiment, directory, name='local', **kwargs):
  """Returns the trials of a study."""
  study = f'{name}_{directory}'
  tuning_lib.tune(trials, experiment, None, directory, study=study, **kwargs)
  return pg.tuning.poll_result(study).trials


def _search(experiment, **changes):
  """Returns a subclass with another search."""

  class Changed(experiment):
    def search(self):
      search = super().search()
      for name, value in changes.items():
        setattr(search, name, value)
      return search

  return Changed


def test_the_space_is_what_an_experiment_evaluates():
  names = tuning_lib.get_search_space(Searched()).hyper_dict
  assert set(names) == {'RATE', 'size', 'TEXT', 'built', 'DECODED'}
  without_data = _search(Searched, enable_dataset_tuning=False)
  names = tuning_lib.get_search_space(without_data()).hyper_dict
  assert set(names) == {'RATE', 'size'}


def test_choices_without_a_name_are_refused():
  class Unnamed(Searched):
    def task(self):
      return Config(Part, size=pg.oneof([1, 2]))

  with pytest.raises(ValueError, match="'name' must be specified"):
    tuning_lib.get_search_space(Unnamed())


class Points(Searched):
  """Search points of Pax instead of primitives of PyGlove."""

  RATE = automl.floatv(0.1, 0.2)
  TEXT = automl.oneof(['foo', 'bar'])
  DEPTH = automl.intv(1, 2)

  def task(self):
    return Config(Part, value=self.RATE, size=(type(self).DEPTH, self.TEXT))

  def decode_datasets(self):
    return []


def test_search_points_are_searched(tmp_path):
  space = tuning_lib.get_search_space(Points())
  assert {'RATE', 'TEXT', 'DEPTH'} < set(space.hyper_dict)
  trials = Trials(1.0)
  _tune(trials, Points(), tmp_path, max_num_trials=3)
  assert len(trials.experiments) == 3
  for task in trials.experiments:
    assert 0.1 <= task.value <= 0.2
    assert task.size[0] in (1, 2) and task.size[1] in ('foo', 'bar')


def test_trials_report_and_complete(tmp_path):
  trials = Trials(1.0, 3.0)
  study = _tune(trials, Searched(), tmp_path)
  assert len(study) == len(trials.experiments) == 10
  assert {task.value for task in trials.experiments} <= {0.1, 0.01, 0.001}
  for trial in study:
    assert trial.status == 'COMPLETED' and not trial.infeasible
    rewards = [(m.step, m.reward) for m in trial.measurements]
    # The last is the mean over the steps, at a step of its own.
    assert rewards == [(10, 1.0), (20, 3.0), (21, 2.0)]
    assert trial.final_measurement.reward == 2.0
    assert 'experiment_config:task' in trial.metadata
  assert trials.stopped == [False, True] * 10
  text = (tmp_path / 'search_space.txt').read_text()
  assert 'RATE' in text
  assert (tmp_path / 'search_algorithm.txt').exists()


def test_directories_are_named_after_values(tmp_path):
  trials = Trials(1.0)
  _tune(trials, Searched(), tmp_path, max_num_trials=1)
  [directory] = trials.directories
  assert directory.parents[0] == tmp_path / '1'
  [task] = trials.experiments
  names = dict(item.split('=') for item in directory.name.split('|'))
  assert names['RATE'] == f'{task.value:.3e}'
  assert names['size'] == str(task.size)


def test_long_names_are_left_out(tmp_path):
  space = tuning_lib.get_search_space(Searched())
  generator = tuning_lib.TrialDirectoryNameGenerator(
    tmp_path, space, total_name_length_threshold=5
  )
  for value, text in [
    (0.1, '1.000e-01'),
    (True, 'True'),
    (Part, 'Part'),
    ([1, 'a:b'], '{1.a=b}'),
  ]:
    assert generator.format_value(value) == text
  with next(iter(pg.sample(space, pg.geno.Random(seed=1), 1)))[0]():
    name = generator.dirname(7).name
  assert '=' not in name and name.count('|') == 4


class _Word(pg.hyper.CustomHyper):
  def custom_decode(self, dna):
    return dna.value

  def first_dna(self):
    return pg.DNA('first')


def test_a_custom_decision_is_not_part_of_the_name(tmp_path):
  space = pg.hyper.trace(
    lambda: (_Word(name='word'), pg.oneof([1, 2], name='size')),
    require_hyper_name=True,
  )
  generator = tuning_lib.TrialDirectoryNameGenerator(tmp_path, space)
  with space.apply(pg.DNA(['other', 1])):
    assert generator.dirname(3).name == 'word=(CUSTOM)|size=2'


@automl.parameter_sweep(
  [('RATE', 'TEXT'), (0.1, 'foo'), (0.01, 'foo'), (0.5, 'bar')]
)
class Rows(base_experiment.BaseExperiment):
  """Sweeps rows of constants."""

  RATE = pg.oneof([0.1, 0.01])
  TEXT = pg.oneof(['foo', 'bar'])

  def task(self):
    return Config(Part, value=self.RATE, size=self.TEXT)

  def datasets(self):
    return []


def test_rows_of_constants(tmp_path):
  trials = Trials(1.0)
  study = _tune(trials, Rows(), tmp_path)
  values = [(task.value, task.size) for task in trials.experiments]
  assert values == [(0.1, 'foo'), (0.01, 'foo'), (0.5, 'bar')]
  assert [d.name for d in trials.directories][0] == 'RATE=1.000e-01|TEXT=foo'
  assert [trial.final_measurement.reward for trial in study] == [0.0] * 3


def test_rows_with_other_choices_are_refused():
  class More(Rows):
    def task(self):
      return Config(Part, value=self.RATE, size=pg.oneof([1, 2], name='size'))

  with pytest.raises(ValueError, match="extra tuning parameters.*'size'"):
    tuning_lib.get_search_space(More())


def test_nan_and_listed_errors_skip_a_trial(tmp_path):
  study = _tune(Trials(float('nan')), Searched(), tmp_path, max_num_trials=2)
  assert all(trial.infeasible for trial in study)

  def fail(*_):
    raise RuntimeError('out of memory')

  skips = _search(Searched, errors_to_skip=[(RuntimeError, '.*of memory')])
  study = _tune(fail, skips(), tmp_path, 'local_skip', max_num_trials=2)
  assert all(trial.infeasible for trial in study)
  with pytest.raises(RuntimeError, match='out of memory'):
    _tune(fail, Searched(), tmp_path, 'local_fail', max_num_trials=2)


class Limited(automl.SingleObjective):
  """Stops trials whose reward is below a limit."""

  limit: float = 1.0
  skip: bool = True

  def __call__(self, metrics_dict, global_step):
    value = super().__call__(metrics_dict, global_step)
    if value < self.limit:
      raise automl.EarlyStoppingError(
        skip=self.skip, step=global_step, reward=None if self.skip else -1.0
      )
    return value


@pytest.mark.parametrize(
  ('skip', 'as_done', 'rewards', 'infeasible', 'reported'),
  [
    (True, False, (2.0, 0.5, 3.0), True, [2.0]),
    (True, True, (2.0, 0.5, 3.0), False, [2.0]),
    (True, True, (0.5,), True, []),
    (False, False, (2.0, 0.5, 3.0), False, [2.0, -1.0]),
  ],
)
def test_rewards_stop_a_trial(
  tmp_path, skip, as_done, rewards, infeasible, reported
):
  reward = Config(Limited, metric=automl.Metric.eval('reward'), skip=skip)
  experiment = _search(
    Searched,
    search_reward=reward,
    treats_early_stopped_trials_as_done=as_done,
  )
  trials = Trials(*rewards)
  [trial] = _tune(trials, experiment(), tmp_path, max_num_trials=1)
  assert trials.stopped[-1] and len(trials.stopped) == min(2, len(rewards))
  assert trial.infeasible is infeasible
  assert [m.reward for m in trial.measurements] == reported


def test_policies_stop_trials(tmp_path):
  policy = Config(
    automl.EarlyStoppingByValue,
    step_values=[(10, 1.0)],
    metric=automl.Metric.eval('reward'),
  )
  experiment = _search(Searched, early_stopping=policy)
  trials = Trials(0.5, 2.0)
  [trial] = _tune(trials, experiment(), tmp_path, max_num_trials=1)
  assert trials.stopped == [True] and trial.infeasible
  trials = Trials(1.5, 0.5)
  [trial] = _tune(
    trials, experiment(), tmp_path, 'local_above', max_num_trials=1
  )
  assert trials.stopped == [False, True] and not trial.infeasible


def test_policies_and_algorithms_of_pyglove(tmp_path):
  class Mine(automl_interfaces.BaseAlgorithm):
    def __call__(self):
      return pg.geno.Sweeping()

  class Policy(automl_interfaces.BaseEarlyStoppingPolicy):
    def __call__(self):
      return pg.early_stopping.early_stop_by_value([(10, 1.0)])()

  class Wrong(automl_interfaces.BaseAlgorithm):
    def __call__(self):
      return 'sweep'

  experiment = _search(
    Searched, search_algorithm=Config(Mine), early_stopping=Config(Policy)
  )
  trials = Trials(0.5, 2.0)
  _tune(trials, experiment(), tmp_path, max_num_trials=2)
  assert trials.stopped == [True, True]
  assert [task.value for task in trials.experiments] == [0.1, 0.1]
  wrong = _search(Searched, search_algorithm=Config(Wrong))
  with pytest.raises(ValueError, match='Wrong.*must be a pg.DNAGenerator'):
    _tune(trials, wrong(), tmp_path, 'local_wrong')


def test_evolution(tmp_path):
  experiment = _search(
    Searched,
    search_algorithm=Config(
      automl.RegularizedEvolution, population_size=3, tournament_size=2, seed=1
    ),
  )
  assert len(_tune(Trials(1.0), experiment(), tmp_path)) == 10


class Several(Searched):
  """A trial of two runs."""

  def sub_experiments(self):
    cls = type(self)

    class Scaled(cls):
      @property
      def RATE(self):
        return super().RATE * 2

    return {'one': cls, 'two': Scaled}

  def search(self):
    search = super().search()
    search.search_reward.metric = automl.Metric.eval(
      'reward', aggregator=automl.MetricAggregator.SUM
    )
    search.cross_step_metric_aggregator = Config(
      automl.LastReportedMetricValues
    )
    return search


def test_trials_of_several_runs(tmp_path):
  trials = Trials(1.0, 2.0)
  [trial] = _tune(trials, Several(), tmp_path, max_num_trials=1)
  first, second = (task.value for task in trials.experiments)
  assert second == 2 * first
  steps = [m.step for m in trial.measurements]
  offset = tuning_lib.SUB_EXPERIMENT_STEP_INTERVAL
  assert steps == [10, 20, offset + 10, offset + 20, offset + 21]
  assert set(trial.measurements[0].metrics) == {f'{REWARD}:one'}
  assert trial.final_measurement.reward == 4.0


def test_training_metrics_count_at_the_last_step(tmp_path):
  metric = automl.Metric.train_steps_per_second()
  experiment = _search(
    Searched, search_reward=Config(automl.SingleObjective, metric=metric)
  )

  def train(experiment, work_unit, directory, stop):
    mode = RunningMode.TRAIN
    assert not stop({'train_steps_per_sec': 1.0}, mode, 1, False, None)
    assert stop({'train_steps_per_sec': 5.0}, mode, 2, True, None)

  [trial] = _tune(train, experiment(), tmp_path, max_num_trials=1)
  assert [(m.step, m.reward) for m in trial.measurements] == [(2, 5), (3, 5)]


def test_training_without_the_evaluation_that_the_reward_needs(tmp_path):
  trials = Trials(1.0, mode=RunningMode.TRAIN)
  [trial] = _tune(trials, Searched(), tmp_path, max_num_trials=1)
  assert trial.infeasible and not trial.measurements


def test_modes_that_do_not_compute_the_metrics(tmp_path):
  def with_metric(metric):
    reward = Config(automl.SingleObjective, metric=metric)
    return _search(Searched, search_reward=reward)()

  loss = with_metric(automl.Metric.train('loss'))
  with pytest.raises(ValueError, match="training metrics.*role is 'eval'"):
    _tune(Trials(), loss, tmp_path, running_mode='eval')
  decoded = with_metric(automl.Metric.decode('f1'))
  with pytest.raises(ValueError, match="decode metrics.*role is 'eval'"):
    _tune(Trials(), decoded, tmp_path, running_mode='eval')


def test_what_cannot_be_tuned(tmp_path, monkeypatch):
  class Constant(Searched):
    RATE, TEXT, DECODED = 1, 2, 3

    def task(self):
      return Config(Part, value=self.RATE)

    def datasets(self):
      return []

  with pytest.raises(ValueError, match='no tunable parameters'):
    _tune(Trials(), Constant(), tmp_path)
  with pytest.raises(NotImplementedError, match='Dedicated controller'):
    _tune(Trials(), Searched(), tmp_path, controller_mode='primary')
  monkeypatch.setitem(sys.modules, 'pyglove', None)
  with pytest.raises(ValueError, match='needs the package pyglove.*--study'):
    tuning_lib.get_search_space(Searched())


class WorkUnit:
  """Notes its artifacts."""

  def __init__(self):
    self.artifacts = []

  def create_artifact(self, artifact_type, path, name):
    self.artifacts.append((pathlib.Path(path).name, name))


def test_trials_start_from_a_checkpoint(tmp_path, monkeypatch):
  # PyGlove's own backend never does; another has a feedback like this.
  path = property(lambda _: '/somewhere/checkpoint_00000010')
  local = importlib.import_module('pyglove.core.tuning.local_backend')
  monkeypatch.setattr(
    local._InMemoryFeedback, 'checkpoint_to_warm_start_from', path
  )
  tasks = []

  class Tiny(quickstart.TinyLm):
    RATE = pg.oneof([0.1, 0.2])

    def task(self):
      task_p = super().task()
      task_p.name = f'rate_{self.RATE}'
      return task_p

    def search(self):
      return automl.SearchHParams(add_experiment_config_to_metadata=False)

  def run(experiment, work_unit, directory, stop):
    tasks.append(experiment.task())
    stop({}, RunningMode.EVAL, 1, True, None)

  _tune(run, Tiny(), tmp_path)
  assert len(tasks) == 2
  rules = tasks[1].train.init_from_checkpoint_rules[path.fget(None)]
  assert rules.load_opt_states and not rules.load_step
  assert rules.task_p.name == tasks[1].name == 'rate_0.2'
  assert not rules.task_p.train.init_from_checkpoint_rules


def test_artifacts(tmp_path):
  work_unit = WorkUnit()
  tuning_lib.tune(
    Trials(1.0), Searched(), work_unit, str(tmp_path), max_num_trials=1
  )
  assert work_unit.artifacts == [
    ('search_space.txt', 'search_space'),
    ('search_algorithm.txt', 'search_algorithm'),
  ]


def test_constants_of_pyglove_in_a_local_study():
  names = space.of(Searched).names
  assert names == ['RATE', 'UNUSED', 'TEXT', 'DECODED']
  assert space.of(Searched).size == 3 * 5 * 2 * 3
  experiment = Searched()
  experiment.RATE = 5
  assert experiment.RATE == 5 and Searched().RATE != 5
