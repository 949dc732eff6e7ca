# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//tests/integration:experiments
"""Studies whose trials are no processes: restarts, kills, errors, stops."""

from __future__ import annotations

import json
import pathlib

import pytest

from pax import automl, exit_codes
from pax.files import trusted_files
from pax.runner import options as options_lib
from pax.studies import command, errors, report, study, trial_metrics
from pax.tuning import space, trial
from praxis import pax_fiddle

Config = pax_fiddle.Config


class Searched:
  """Four combinations."""

  A = automl.oneof([1, 2])
  B = automl.oneof([10, 20])


class Ended:
  """A trial that ends with a code, or never."""

  def __init__(self, code):
    self.code = code

  def poll(self):
    return self.code

  def send_signal(self, number):
    self.code = -number


def _search(parts=('',), **fields):
  found = automl.hyperparameter_tuning(automl.Metric.eval('loss'))
  for name, value in fields.items():
    setattr(found, name, value)
  return study.Search.of(found, 'eval', parts)


def _study(tmp_path, begin, num_trials=None, search=None, experiment=Searched):
  (tmp_path / 'logs').mkdir(exist_ok=True)

  def start(trial, part):
    begun.append((trial.id, part) if part else trial.id)
    folder = tmp_path / str(trial.id) / part
    folder.mkdir(exist_ok=True, parents=True)
    loss = float(trial.settings['A']) * float(trial.settings['B'])
    record = {'step': 1, 'split': 'eval_test_x', 'time': 0, 'loss': loss}
    (folder / 'metrics.jsonl').write_text(json.dumps(record) + '\n')
    return Ended(begin(trial.id))

  begun: list[int] = []
  made = study.Study(
    str(tmp_path),
    space.of(experiment),
    search or _search(),
    study.Limits(num_trials=num_trials, parallel=2),
    start,
  )
  return made, begun


def test_a_study_that_is_started_again_goes_on(tmp_path):
  first, begun = _study(tmp_path, lambda id: 0, num_trials=3)
  first.run()
  assert sorted(begun) == [1, 2, 3]
  second, begun = _study(tmp_path, lambda id: 0)
  second.run()
  assert begun == [4]
  assert [t.reward for t in second.trials] == [10, 20, 20, 40]
  shown = report.text(second.trials, space.of(Searched), _search())
  assert shown.splitlines()[1].split()[:3] == ['4', '2', '20']
  assert shown.endswith('best: trial 4  --set A=2 --set B=20')


def test_a_sweep_without_a_metric_shows_losses(tmp_path, capsys):
  hparams = automl.parameter_sweep({'A': [1, 2]})(Searched)().search()
  search = study.Search.of(hparams, 'eval')
  made, _ = _study(tmp_path, lambda id: 0, search=search)
  made.run()
  printed = capsys.readouterr().out.splitlines()
  assert printed[3] == (
    "trial 4  eval_test_x/metrics/loss 40  {'A': '2', 'B': '20'}"
  )
  report.write(str(tmp_path), made.trials, space.of(Searched), search)
  table = (tmp_path / report.TABLE_FILE).read_text().splitlines()
  assert [line.split() for line in table] == [
    ['trial', 'A', 'B', 'eval_test_x/metrics/loss', 'step', 'status'],
    ['1', '1', '10', '10', '1', 'done'],
    ['2', '1', '20', '20', '1', 'done'],
    ['3', '2', '10', '20', '1', 'done'],
    ['4', '2', '20', '40', '1', 'done'],
  ]
  assert not (tmp_path / report.PICTURE_FILE).exists()


def test_a_trial_without_metrics_says_what_writes_them(tmp_path):
  hparams = automl.parameter_sweep({'A': [1, 2]})(Searched)().search()
  search = study.Search.of(hparams, 'decode')
  made, _ = _study(tmp_path, lambda id: 0, search=search)
  made.run()
  assert {t.reason for t in made.trials} == {
    'decode wrote no metrics; add inputs to decoder_datasets(), or use'
    ' --metrics_from=eval'
  }


def test_a_killed_trial_is_run_again(tmp_path):
  codes = {2: [-9]}
  made, begun = _study(
    tmp_path, lambda id: codes[id].pop() if codes.get(id) else 0
  )
  made.run()
  assert sorted(begun) == [1, 2, 2, 3, 4]
  assert {t.status.value for t in made.trials} == {'done'}


def test_a_trial_that_diverged_is_done(tmp_path):
  made, begun = _study(
    tmp_path, lambda id: exit_codes.DIVERGED if id == 2 else 0
  )
  made.run()
  assert begun == [1, 2, 3, 4]
  assert {t.status.value for t in made.trials} == {'done'}


def test_what_ran_when_the_study_stopped_runs_again(tmp_path):
  made, begun = _study(tmp_path, lambda id: 75 if id == 1 else 0)
  made.stop()
  made.run()
  assert not begun
  path = pathlib.Path(tmp_path, 'study.jsonl')
  record = {'id': 1, 'settings': {'A': '2', 'B': '20'}, 'status': 'running'}
  path.write_text(json.dumps(record) + '\n')
  made, begun = _study(tmp_path, lambda id: 0, num_trials=1)
  made.run()
  assert begun == [1] and made.trials[0].reward == 40


def _log(tmp_path, id, error):
  (tmp_path / 'logs').mkdir(exist_ok=True)
  text = f'Traceback (most recent call last):\n  File "x"\n{error}\npax: error'
  (tmp_path / 'logs' / f'trial_{id}.log').write_text(text)


def test_an_error_ends_the_study_unless_it_is_skipped(tmp_path):
  _log(tmp_path, 2, 'FileNotFoundError: no data')
  made, _ = _study(tmp_path, lambda id: int(id == 2))
  with pytest.raises(ValueError, match='trial 2 failed: FileNotFoundError: no'):
    made.run()
  skips = _search(errors_to_skip=[(OSError, 'no d.ta')])
  made, _ = _study(tmp_path, lambda id: int(id == 2), search=skips)
  made.run()
  assert [t.status.value for t in made.trials] == [
    'done', 'skipped', 'done', 'done',
  ]  # fmt: skip
  assert made.trials[1].reason == 'FileNotFoundError: no data'


def test_errors_by_type_and_message():
  error = errors.TrialError('FileNotFoundError', 'no data')
  assert error.matches_any([OSError])
  assert not error.matches_any([(OSError, 'full'), ValueError])


@pytest.mark.parametrize('keep', [True, False])
def test_a_trial_far_behind_is_stopped(tmp_path, keep):
  search = _search(
    treats_early_stopped_trials_as_done=keep,
    early_stopping=Config(automl.EarlyStoppingByValue, step_values=[(1, 15.0)]),
  )
  made, _ = _study(tmp_path, lambda id: None if id == 1 else 0, search=search)
  made.run()
  assert made.trials[0].status.value == ('done' if keep else 'skipped')


def test_another_study_is_not_continued(tmp_path):
  made, _ = _study(tmp_path, lambda id: 0)
  made.run()
  with pytest.raises(ValueError, match='a study of A, B, not of A;'):
    _study(tmp_path, lambda id: 0, experiment=type('E', (), {'A': Searched.A}))


def test_the_reward_must_be_measured():
  search = automl.hyperparameter_tuning(automl.Metric.decode('bleu'))
  with pytest.raises(ValueError, match='needs --metrics_from=decode, got eval'):
    study.Search.of(search, 'eval')


def test_words_of_a_trial():
  options = options_lib.parse([
    'pax', '--exp=E', '--job_log_dir=/d', '--study=local', '--num_trials=9',
    '--parallel_trials=3', '--set=N=1',
  ])  # fmt: skip
  searched = trial.Trial(4, {'A': "'x y'"})
  words = command.trial_words(options, '/d', searched, '')
  assert options_lib.parse(['pax', *words]) == options_lib.RunOptions(
    exp='E',
    job_log_dir='/d/4',
    set=('N=1', "A='x y'"),
    eval_on_test=True,
    traceback=True,
  )
  words = command.trial_words(options, '/d', searched, 'small')
  found = options_lib.parse(['pax', *words])
  assert (found.job_log_dir, found.sub_experiment) == ('/d/4/small', 'small')


@pytest.mark.parametrize(
  ('word', 'message'),
  [
    ('--study=vizier', 'needs a search service'),
    ('--mode=eval', '--study needs --mode=train'),
    ('--metrics_from=x', 'must be one of train, eval, decode'),
    ('--parallel_trials=0', 'must be an integer at least 1'),
    ('--sub_experiment=x', 'runs all sub-experiments'),
    ('--noenable_summary_writer', 'reads the metrics'),
  ],
)
def test_what_is_no_study(word, message):
  words = ['pax', '--study=local', '--exp=E', '--job_log_dir=/d', word]
  with pytest.raises(ValueError, match=message):
    command.run(options_lib.parse(words))


@pytest.mark.parametrize(
  ('metric', 'fields', 'message'),
  [
    ('loss', {'early_stopping': Config(automl.OptunaPruner)}, 'got Sweeping'),
    (None, {'search_algorithm': Config(automl.OptunaSearch)}, 'need a reward'),
    (
      None,
      {
        'search_algorithm': Config(automl.OptunaSearch, sampler='random'),
        'early_stopping': Config(automl.OptunaPruner),
      },
      'need a reward',
    ),
  ],
)
def test_optuna_without_what_it_needs(tmp_path, metric, fields, message):
  metric = metric and automl.Metric.eval(metric)
  hparams = automl.parameter_sweep(metric=metric)(Searched)().search()
  for name, value in fields.items():
    setattr(hparams, name, value)
  with pytest.raises(ValueError, match=message):
    study.Search.of(hparams, 'eval', directory=str(tmp_path))


def test_a_journal_that_others_can_write_is_refused(tmp_path):
  """Optuna unpickles the state of CMA-ES in it."""
  journal = tmp_path / 'optuna.journal'
  journal.touch()
  journal.chmod(0o666)
  words = ['pax', 'tune', f'--job_log_dir={tmp_path}', '--sampler=cmaes']
  words += ['--exp=tests.integration.experiments.TinyTuned']
  with pytest.raises(trusted_files.UntrustedFileError, match='all users'):
    command.run(options_lib.parse(words))


def test_a_trial_of_two_runs(tmp_path):
  search = _search(('small', 'large'))
  metrics = [automl.Metric.eval('loss', sub_experiment_id='large')]
  search.reward.metric.aggregator = automl.MetricAggregator.SUM
  made, begun = _study(tmp_path, lambda id: 0, num_trials=2, search=search)
  made.run()
  assert begun == [(1, 'small'), (2, 'small'), (1, 'large'), (2, 'large')]
  first = made.trials[0]
  assert (first.reward, first.step) == (20, 1)
  assert metrics[0].get_value(first.metrics) == 10
  assert 'eval_test_x/metrics/loss:small' in first.metrics


def test_a_run_that_failed_is_named(tmp_path):
  _log(tmp_path, '1_large', 'OSError: full')
  codes = iter([0, 1])
  made, _ = _study(
    tmp_path,
    lambda id: next(codes),
    num_trials=1,
    search=_search(('small', 'large')),
  )
  with pytest.raises(ValueError, match='trial 1 failed: OSError: full'):
    made.run()


class Enough(automl.BaseReward):
  """Ends the trials that reach 20, one way or the other."""

  skip: bool = True

  def __call__(self, metrics_dict, global_step):
    loss = metrics_dict['eval_test_x/metrics/loss']
    if loss == 20:
      raise automl.EarlyStoppingError(
        skip=self.skip, skip_reason='enough', step=5, reward=99.0
      )
    return loss

  @property
  def used_metrics(self):
    return [automl.Metric.eval('loss')]


@pytest.mark.parametrize('skip', [True, False])
def test_a_reward_ends_a_trial(tmp_path, skip):
  search = _search(search_reward=Config(Enough, skip=skip))
  made, _ = _study(
    tmp_path, lambda id: None if id in (2, 3) else 0, search=search
  )
  made.run()
  assert [t.reward for t in made.trials] == (
    [10, None, None, 40] if skip else [10, 99, 99, 40]
  )
  assert made.trials[1].reason == ('enough' if skip else '')
  assert made.trials[1].step == (0 if skip else 5)


def test_a_trial_that_others_are_ahead_of(tmp_path):
  """Losses are 10, 20, 20, 40, and more is better here."""
  early = Config(
    automl.EarlyStoppingByRank, step_ranks=[(1, 2, 2)], maximize=False
  )
  search = _search(
    early_stopping=early, treats_early_stopped_trials_as_done=False
  )
  made, _ = _study(tmp_path, lambda id: None if id == 4 else 0, search=search)
  made.run()
  assert [t.status.value for t in made.trials][-1] == 'skipped'


def test_speeds_and_sizes_by_the_names_metrics_have(tmp_path):
  records = [
    ('train', {'Steps/sec': 4.0, 'num_params': 12, 'loss': 3.0}),
    ('eval_test_a', {'Steps/sec': 1.0, 'loss': 2.0}),
    ('eval_test_b', {'Steps/sec': 3.0, 'Metrics/x': 5.0}),
    ('decode_test_c', {'Steps/sec': 7.0}),
  ]
  lines = [
    json.dumps({'step': 1, 'split': split, 'time': 0} | values)
    for split, values in records
  ]
  (tmp_path / 'metrics.jsonl').write_text('\n'.join(lines) + '\n')
  found = trial_metrics.read({'': str(tmp_path)}, 'decode', None).history
  ((step, metrics),) = found
  made = automl.Metric
  wanted = [
    (made.train_steps_per_second(), 4),
    (made.eval_steps_per_second(), 2),
    (made.decode_steps_per_second(), 7),
    (made.num_params(), 12),
    (made.train('loss'), 3),
    (made.eval('loss', 'a'), 2),
    (made.eval('x'), 5),
  ]
  assert step == 1
  assert [m.get_value(metrics) for m, _ in wanted] == [x for _, x in wanted]


class Evaluates(Ended):
  """Writes a record at each poll, evaluations of two steps, then ends."""

  def __init__(self, file):
    super().__init__(None)
    self._file = file
    # Losses of the evaluations on training batches are no rewards.
    self._records = [
      {'step': step, 'split': split, 'time': 0, 'loss': loss}
      for step, split, loss in [
        (10, 'eval_train', 9.0),
        (10, 'eval_test_x', 1.0),
        (20, 'eval_train', 9.0),
        (20, 'eval_test_x', 2.0),
      ]
    ]

  def poll(self):
    if self.code is None and not self._records:
      self.code = 0
    if self.code is None:
      with self._file.open('a') as file:
        file.write(json.dumps(self._records.pop(0)) + '\n')
    return self.code


@pytest.mark.parametrize(
  ('rule', 'stops'), [((10, 1.5), True), ((20, 1.5), False), ((20, 2.5), True)]
)
def test_rules_await_the_inputs_of_a_step(tmp_path, rule, stops):
  """The input that is evaluated first has none of the metrics they need."""
  search = _search(
    early_stopping=Config(automl.EarlyStoppingByValue, step_values=[rule]),
    treats_early_stopped_trials_as_done=False,
  )

  def start(trial, part):
    folder = tmp_path / str(trial.id)
    folder.mkdir()
    return Evaluates(folder / 'metrics.jsonl')

  limits = study.Limits(num_trials=1)
  made = study.Study(str(tmp_path), space.of(Searched), search, limits, start)
  made.run()
  assert made.trials[0].status.value == ('skipped' if stops else 'done')
