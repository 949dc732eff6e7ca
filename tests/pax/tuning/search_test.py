# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Search points, algorithms, metrics, rewards and sweeps."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from pax import automl
from pax.tuning import space, trial
from praxis import pax_fiddle

Config = pax_fiddle.Config
DONE = trial.Status.DONE


class Small:
  """Constants of six combinations."""

  HIDDEN = automl.oneof([16, 32, 64])
  LAYERS = automl.intv(1, 2)
  OTHER = 3


class Wide:
  """Constants that cannot be counted."""

  RATE = automl.floatv(1e-4, 1e-1, 'log')
  KIND = automl.oneof([int, float])


def _study(algorithm, searched, count, reward=lambda settings: 0.0):
  """The settings of a study of up to `count` trials."""
  trials = []
  for index in range(count):
    proposed = algorithm()(searched, trials)
    if proposed is None:
      break
    trials.append(
      trial.Trial(index + 1, proposed, DONE, reward=reward(proposed))
    )
  return [t.settings for t in trials]


def test_a_sweep_is_every_combination_once():
  found = _study(automl.Sweeping(), space.of(Small), 100)
  wanted = itertools.product(['16', '32', '64'], ['1', '2'])
  assert found == [{'HIDDEN': h, 'LAYERS': n} for h, n in wanted]


def test_an_interval_of_numbers_cannot_be_swept():
  with pytest.raises(ValueError, match='RATE is a floatv.*RandomSearch'):
    automl.Sweeping()()(space.of(Wide), [])


def test_random_search_follows_its_seed_and_a_restart():
  searched = space.of(Wide)
  found = _study(automl.RandomSearch(seed=3), searched, 200)
  assert found == _study(automl.RandomSearch(seed=3), searched, 200)
  assert found != _study(automl.RandomSearch(seed=4), searched, 200)
  rates = [float(settings['RATE']) for settings in found]
  assert 1e-4 <= min(rates) and max(rates) <= 1e-1
  # Half of them below the geometric mean.
  assert 70 <= sum(rate < 10**-2.5 for rate in rates) <= 130
  kinds = {settings['KIND'] for settings in found}
  assert kinds == {'builtins.int', 'builtins.float'}


def test_evolution_climbs():
  class Long:
    A = automl.intv(0, 99)
    B = automl.intv(0, 99)
    C = automl.intv(0, 99)
    D = automl.intv(0, 99)

  def reward(settings):
    return -sum(abs(int(settings[name]) - 50) for name in 'ABCD')

  def best(algorithm):
    found = _study(algorithm, space.of(Long), 150, reward)
    return max(map(reward, found))

  evolution = automl.RegularizedEvolution(
    population_size=20, tournament_size=5, seed=0
  )
  assert best(evolution) > best(automl.RandomSearch(seed=0))


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: automl.oneof([]), 'at least 1 candidate'),
    (lambda: automl.oneof([1, 1]), 'candidates that differ'),
    (lambda: automl.floatv(2, 1), 'min_value < max_value'),
    (lambda: automl.floatv(0, 1, 'log'), 'min_value > 0'),
    (lambda: automl.floatv(0, 1, 'sqrt'), 'scale must be one of'),
    (lambda: automl.intv(2, 1), 'min_value <= max_value'),
  ],
)
def test_impossible_points(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_reverse_logarithms_crowd_at_the_top():
  point = automl.floatv(1.0, 100.0, 'rlog')
  rng = random.Random(0)
  drawn = [point.sample(rng) for _ in range(200)]
  assert sum(value > 91 for value in drawn) > 70
  assert all(1 <= value <= 100 for value in drawn)


def test_rows_are_swept_together():
  @automl.parameter_sweep([('RATE', 'HIDDEN'), (0.1, 8), (0.01, 8)])
  class Rows:
    RATE = 1.0
    HIDDEN = 4
    KIND = automl.oneof(['a', 'b'])

  assert Rows.__qualname__.endswith('<locals>.Rows')
  found = _study(automl.Sweeping(), space.of(Rows), 100)
  assert [tuple(settings.values()) for settings in found] == [
    ('0.1', '8', "'a'"),
    ('0.1', '8', "'b'"),
    ('0.01', '8', "'a'"),
    ('0.01', '8', "'b'"),
  ]
  fixed = type('Fixed', (Rows,), {'RATE': 0.5})
  with pytest.raises(ValueError, match='RATE cannot be set alone'):
    space.of(fixed)


def test_a_dict_is_swept_by_combination():
  metric = automl.Metric.eval('loss')

  @automl.parameter_sweep({'A': [1, 2], 'B': [3, 4]}, metric=metric)
  class Both:
    A = 0
    B = 0

  assert space.of(Both).size == 4
  search = Both().search()
  assert search.search_algorithm.Instantiate()()(space.of(Both), []) == {
    'A': '1',
    'B': '3',
  }
  assert search.search_reward.metric is metric


@pytest.mark.parametrize(
  ('combinations', 'message'),
  [
    ([('A',)], 'at least 1 tuple of values'),
    ([('A',), (1, 2)], 'as long as the first'),
    ([(1,), (2,)], 'names of constants'),
    ([('Z',), (2,)], 'no constant Z'),
  ],
)
def test_impossible_sweeps(combinations, message):
  with pytest.raises(ValueError, match=message):
    automl.parameter_sweep(combinations)(type('E', (), {'A': 0}))


def test_metrics_match_names():
  measured = {
    'train/loss': 1.0,
    'eval_test_a/metrics/loss': 2.0,
    'eval_test_b/Metrics/loss': 4.0,
    'decode_test_c/bleu': 8.0,
  }
  metric = automl.Metric
  assert metric.train('loss').get_value(measured) == 1
  assert metric.eval('loss', 'b').get_value(measured) == 4
  assert metric.decode('bleu').get_value(measured) == 8
  mean = automl.MetricAggregator.AVERAGE
  assert metric.eval('loss', aggregator=mean).get_value(measured) == 3
  assert metric.eval('loss', aggregator=max).get_value(measured) == 4
  assert metric.eval('x').pattern == '^eval_test_[^/]+/metrics/x(:.+)?$'
  with pytest.raises(ValueError, match='wants 1 metric, got eval_test_a'):
    metric.eval('loss').get_value(measured)
  with pytest.raises(ValueError, match='no metric matches .*; there are dec'):
    metric.eval_train('loss').get_value(measured)


def test_rewards():
  measured = {'train/loss': 3.0, 'train/cost': 20.0, 'train/nan': math.nan}
  loss, cost, nan = map(automl.Metric.train, ['loss', 'cost', 'nan'])
  single = automl.SingleObjective(metric=loss, goal='minimize')
  assert single(measured, 1) == -3
  assert (
    automl.SingleObjective(metric=nan, reward_for_nan=-9)(measured, 1) == -9
  )
  weighted = automl.weighted_sum_reward([(loss, 1), (cost, -3)]).Instantiate()
  assert weighted(measured, 1) == (3 - 60) / 4
  assert weighted.needs_train and not weighted.needs_eval


@pytest.mark.parametrize(
  ('cls', 'wanted'),
  [
    (automl.TunasAbsolute, 3 - 0.07 * 1),
    (automl.MnasHard, 3 * 2**-0.07),
    (automl.MnasSoft, 3 * 2**-0.07),
  ],
)
def test_rewards_of_a_quality_and_a_cost(cls, wanted):
  assert cls(cost_objective=10)([3.0, 20.0]) == pytest.approx(wanted)


def test_steps_of_sub_experiments_are_merged_in_their_order():
  second = 1_000_000_000
  history = [
    (10, {'a': 1.0}),
    (20, {'a': 2.0}),
    (30, {'a': 3.0}),
    (second + 15, {'b': 4.0}),
    (second + 30, {'b': 5.0}),
    (second + 25, {'b': 6.0}),
  ]
  assert automl.LastReportedMetricValues()(history) == {'a': 3, 'b': 5}
  history = history[:4]
  assert automl.LastReportedMetricValues()(history) == {'a': 3}


def test_aggregators():
  history = [(1, {'a': 1.0, 'b': 5.0}), (2, {'a': 3.0}), (3, {'a': 2.0})]
  assert automl.LastReportedMetricValues()(history) == {'a': 2}
  assert automl.AverageMetricValues()(history) == {'a': 2, 'b': 5}
  assert automl.AverageMetricValues(last_n=2)(history) == {'a': 2.5, 'b': 5}
  metric = automl.Metric('a')
  assert automl.MetricsWithMaxValue(metric=metric)(history) == {'a': 3}
  lowest = automl.MetricsWithMinValue(metric=metric)(history)
  assert lowest == {'a': 1, 'b': 5}


def test_nan_is_no_best_value():
  metric, nan = automl.Metric('a'), float('nan')
  history = [(i, {'a': a}) for i, a in enumerate([nan, 1.0, 3.0, nan])]
  assert automl.MetricsWithMaxValue(metric=metric)(history) == {'a': 3}
  assert automl.MetricsWithMinValue(metric=metric)(history) == {'a': 1}
  only = automl.MetricsWithMaxValue(metric=metric)(history[:1])
  assert math.isnan(only['a'])


@pytest.mark.parametrize('maximize', [True, False])
def test_nan_is_behind_all_numbers(maximize):
  metric, nan = automl.Metric('a'), float('nan')
  by_value = automl.EarlyStoppingByValue(
    step_values=[(1, 0.0)], metric=metric, maximize=maximize
  )()
  by_rank = automl.EarlyStoppingByRank(
    step_ranks=[(1, 3, 1)], metric=metric, maximize=maximize
  )()
  others = [[(1, {'a': a})] for a in (1.0, nan, 3.0, nan, 2.0)]
  worst = 1.0 if maximize else 3.0
  assert by_value([(1, {'a': nan})], [])
  assert by_rank([(1, {'a': nan})], others)
  # The third best of the numbers.
  assert not by_rank([(1, {'a': worst})], others)
  assert by_rank([(1, {'a': worst - 1 if maximize else worst + 1})], others)


def test_a_trial_is_stopped_by_value():
  policy = automl.EarlyStoppingByValue(
    step_values=[(10, 0.5)], metric=automl.Metric('a')
  )()
  assert not policy([(9, {'a': 0.1})], [])
  assert policy([(9, {'a': 0.9}), (12, {'a': 0.4})], [])
  assert not policy([(12, {'a': 0.6}), (20, {'a': 0.1})], [])
  # What did not measure it counts when it does.
  assert policy([(12, {'b': 0.6}), (20, {'a': 0.1})], [])


@pytest.mark.parametrize(
  ('rank', 'value', 'stops'),
  [
    # Others are 4, 3, 2, 1, and one that is not so far.
    (2, 2.9, True),
    (2, 3.0, False),
    (4, 0.5, True),
    (5, 0.0, False),
    # A place of int(0.5 * 3) = 1: the second best.
    (0.5, 2.9, True),
    (0.5, 3.0, False),
    (0.0, 3.9, True),
    (1.0, 1.0, False),
    (1.0, 0.9, True),
  ],
)
def test_a_trial_is_stopped_by_rank(rank, value, stops):
  others = [[(9, {'a': 99.0}), (11, {'a': v})] for v in (1.0, 4.0, 2.0, 3.0)]
  others.append([(9, {'a': 99.0})])
  history = [(9, {'a': 0.0}), (10, {'a': value})]
  metric = automl.Metric('a')
  for sign in (1, -1):
    if sign < 0:
      others = [[(s, {'a': -m['a']}) for s, m in one] for one in others]
      history = [(s, {'a': -m['a']}) for s, m in history]
    policy = automl.EarlyStoppingByRank(
      step_ranks=[(10, rank, 4)], metric=metric, maximize=sign > 0
    )()
    assert policy(history, others) is stops
    # Too few others, or decided before.
    assert not policy(history, others[:3])
    assert not policy([*history, (12, {'a': sign * -9.0})], others)


@pytest.mark.parametrize(
  'ranks', [None, [(1, 0, 1)], [(1, 1.5, 1)], [(1, 2)], [(1, -1, 1)]]
)
def test_impossible_ranks(ranks):
  with pytest.raises(ValueError, match='step_ranks must be'):
    automl.EarlyStoppingByRank(step_ranks=ranks)


def test_the_signal_of_a_reward():
  with pytest.raises(ValueError, match='wants a step and a reward or metrics'):
    automl.EarlyStoppingError(skip=False, step=3)
  found = automl.EarlyStoppingError(skip_reason='flat')
  assert (found.skip, str(found)) == (True, 'flat')
  assert not isinstance(found, Exception)


def test_a_search_point_is_a_constant():
  class Small:
    rate = automl.oneof([1, 2])

  with pytest.raises(ValueError, match='rename it to RATE'):
    space.of(Small)
  space.enable_class_level_hyper_primitives(Wide)
