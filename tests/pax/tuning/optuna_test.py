# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Samplers and pruners of Optuna: what they find, and what a kill leaves."""

from __future__ import annotations

import pathlib

import pytest

from pax import automl
from pax.tuning import optuna_study, space, trial

pytest.importorskip('optuna')
DONE, RUNNING = trial.Status.DONE, trial.Status.RUNNING


class Searched:
  """Points of every kind."""

  RATE = automl.floatv(1e-5, 1.0, 'log')
  DECAY = automl.floatv(0.5, 1.0, 'rlog')
  LAYERS = automl.intv(1, 9)
  KIND = automl.oneof(['good', 'bad'])


class Plane:
  """Numbers alone."""

  X = automl.floatv(-4.0, 4.0)
  Y = automl.floatv(-4.0, 4.0)


def _bowl(settings):
  """Has its maximum, 0, at (1, -2); the axes are oblique."""
  x, y = float(settings['X']) - 1, float(settings['Y']) + 2
  return -(x**2) - 10 * (y - x / 2) ** 2


def _search(tmp_path, algorithm, searched, reward, count, trials=()):
  """Runs trials one after the other; returns them."""
  propose = algorithm.open(str(tmp_path))
  trials = list(trials)
  while len(trials) < count:
    found = propose(space.of(searched), trials)
    trials.append(
      trial.Trial(len(trials) + 1, found, DONE, reward=reward(found))
    )
  return trials


@pytest.mark.parametrize('sampler', ['tpe', 'cmaes', 'random'])
def test_settings_are_in_the_space(tmp_path, sampler):
  algorithm = automl.OptunaSearch(sampler=sampler, seed=1, num_startup_trials=3)
  trials = _search(tmp_path, algorithm, Searched, lambda _: 0.0, 6)
  for found in (t.settings for t in trials):
    assert list(found) == ['RATE', 'DECAY', 'LAYERS', 'KIND']
    assert 1e-5 <= float(found['RATE']) <= 1.0
    assert 0.5 <= float(found['DECAY']) <= 1.0
    assert int(found['LAYERS']) in range(1, 10)
    assert found['KIND'] in ("'good'", "'bad'")
  assert len({tuple(t.settings.values()) for t in trials}) == 6


@pytest.mark.parametrize('sampler', ['tpe', 'cmaes'])
def test_a_sampler_beats_random_search(tmp_path, sampler):
  algorithm = automl.OptunaSearch(sampler=sampler, seed=3, num_startup_trials=5)
  guided = _search(tmp_path, algorithm, Plane, _bowl, 40)
  randomly = _search(tmp_path, automl.RandomSearch(seed=3), Plane, _bowl, 40)
  means = [
    sum(t.reward for t in trials[-10:]) / 10 for trials in (guided, randomly)
  ]
  assert means[0] > means[1] / 3


def test_a_study_that_is_killed_goes_on_as_if_it_had_not(tmp_path):
  whole_dir, killed = tmp_path / 'whole', tmp_path / 'killed'
  whole_dir.mkdir()
  killed.mkdir()
  algorithm = automl.OptunaSearch(sampler='cmaes', seed=5, num_startup_trials=3)
  whole = _search(whole_dir, algorithm, Plane, _bowl, 12)
  journal = killed / optuna_study.JOURNAL_FILE
  trials = []
  for count in (4, 9, 12):
    trials = _search(
      tmp_path / 'killed', algorithm, Plane, _bowl, count, trials
    )
    # Proposed, but the process was killed before it could record the trial ...
    algorithm.open(str(tmp_path / 'killed'))(space.of(Plane), trials)
    # ... and once within a line of the journal.
    with journal.open('a') as f:
      f.write('{"op_code":4,"wor')
  assert trials == whole


def test_a_lost_journal_is_made_again(tmp_path):
  algorithm = automl.OptunaSearch(seed=2, num_startup_trials=1)
  trials = _search(tmp_path, algorithm, Searched, lambda _: 1.0, 5)
  journal = pathlib.Path(tmp_path, optuna_study.JOURNAL_FILE)
  journal.unlink()
  algorithm.open(str(tmp_path))(space.of(Searched), trials)
  study = optuna_study.OptunaStudy(str(tmp_path)).study
  found = study.get_trials()
  assert [t.value for t in found] == [1.0] * 5 + [None]
  for ours, theirs in zip(trials, found, strict=False):
    assert theirs.params['RATE'] == float(ours.settings['RATE'])
    mirrored = 1.5 - float(ours.settings['DECAY'])
    assert theirs.params['DECAY'] == pytest.approx(mirrored)
    assert theirs.params['LAYERS'] == int(ours.settings['LAYERS'])
    assert theirs.params['KIND'] == ours.settings['KIND']


def test_trials_at_the_same_time_differ(tmp_path):
  propose = automl.OptunaSearch(seed=1).open(str(tmp_path))
  trials = []
  for id in range(1, 5):
    found = propose(space.of(Plane), trials)
    trials.append(trial.Trial(id, found, RUNNING))
  assert len({t.settings['X'] for t in trials}) == 4
  study = optuna_study.OptunaStudy(str(tmp_path)).study
  assert {t.state.name for t in study.get_trials()} == {'RUNNING'}


@pytest.mark.parametrize('pruner', ['median', 'halving', 'hyperband'])
def test_a_pruner_stops_the_worst_trial(tmp_path, pruner):
  directory = str(tmp_path)
  propose = automl.OptunaSearch(seed=1).open(directory)
  should_stop = automl.OptunaPruner(
    pruner=pruner, num_startup_trials=2, max_step=9
  ).open(directory)
  trials, stopped = [], {}
  for id in range(1, 13):
    found = propose(space.of(Plane), trials)
    trials.append(trial.Trial(id, found, RUNNING))
    # The first are the best, so that the last ones are known to be behind.
    history = [(step, {'reward': -float(id)}) for step in range(1, 10)]
    stops = (
      step for step in range(1, 10) if should_stop(id, {id: history[:step]})
    )
    stopped[id] = next(stops, None)
    trials[-1] = trial.Trial(id, found, DONE, reward=-float(id))
  assert stopped[1] is None
  assert sum(step is not None for step in stopped.values()) >= 4
  propose(space.of(Plane), trials)
  states = [
    t.state.name for t in optuna_study.OptunaStudy(directory).study.get_trials()
  ]
  wanted = ['COMPLETE' if stopped[id] is None else 'PRUNED' for id in stopped]
  assert states == [*wanted, 'RUNNING']


def test_a_value_that_another_input_changed(tmp_path):
  directory = str(tmp_path)
  propose = automl.OptunaSearch(seed=1).open(directory)
  should_stop = automl.OptunaPruner().open(directory)
  propose(space.of(Plane), [])
  nan = float('nan')
  for values in ([1.0], [2.0], [2.0, nan], [2.0, nan]):
    history = [(step, {'reward': x}) for step, x in enumerate(values)]
    should_stop(1, {1: history})
  study = optuna_study.OptunaStudy(directory).study
  (found,) = study.get_trials()
  assert found.intermediate_values == pytest.approx(
    {0: 2.0, 1: nan}, nan_ok=True
  )


def test_a_pruner_needs_a_sampler_of_optuna(tmp_path):
  should_stop = automl.OptunaPruner().open(str(tmp_path))
  with pytest.raises(ValueError, match='set search_algorithm to OptunaSearch'):
    should_stop(1, {1: [(1, {'reward': 0.0})]})


def test_other_names_are_refused():
  with pytest.raises(ValueError, match="one of tpe, cmaes, random, got 'grid'"):
    automl.OptunaSearch(sampler='grid')
  with pytest.raises(ValueError, match="halving, hyperband, got 'best'"):
    automl.OptunaPruner(pruner='best')
