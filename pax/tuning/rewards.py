# SPDX-License-Identifier: Apache-2.0
"""Rewards: the objective of a search, from one metric or several."""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Callable, Sequence

from pax.tuning import interfaces
from pax.tuning.metrics import Metric
from praxis import base_hyperparams, pax_fiddle

Config = pax_fiddle.Config

_SIGNS = {'maximize': 1.0, 'minimize': -1.0}


class SingleObjective(interfaces.BaseReward):
  """A metric, or its negative."""

  # The metric.
  metric: Metric | None = None
  # 'maximize' or 'minimize'.
  goal: str = 'maximize'
  # The reward if the metric is NaN; None: the trial is skipped.
  reward_for_nan: float | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.metric is None:
      raise ValueError("metric must be set, e.g. Metric.eval('loss')")
    _check_goal(self.goal)
    self._metric = self.metric

  def __call__(self, metrics_dict: dict[str, float], global_step: int) -> float:
    reward = _SIGNS[self.goal] * self._metric.get_value(metrics_dict)
    return _replace_nan(reward, self.reward_for_nan)

  @property
  def used_metrics(self) -> Sequence[Metric]:
    return [self._metric]


class MultiObjectiveAggregator(
  base_hyperparams.FiddleBaseParameterizable, metaclass=abc.ABCMeta
):
  """Reduces the values of several metrics to one."""

  @abc.abstractmethod
  def __call__(self, values: Sequence[float]) -> float:
    """Returns the reduced value."""


class MultiObjective(interfaces.BaseReward):
  """An aggregate of several metrics, or its negative."""

  # The metrics.
  metrics: Sequence[Metric] | None = None
  # Reduces them to one value; not needed for one metric.
  aggregator_tpl: Config[MultiObjectiveAggregator] | None = None
  # 'maximize' or 'minimize'.
  goal: str = 'maximize'
  # The reward if a metric is NaN; None: the trial is skipped.
  reward_for_nan: float | None = None

  def __post_init__(self):
    super().__post_init__()
    _check_goal(self.goal)
    if not self.metrics:
      raise ValueError(f'metrics must be a list of Metric, got {self.metrics}')
    self._metrics = self.metrics
    self._aggregate: Callable[[Sequence[float]], float] = operator.itemgetter(0)
    if self.aggregator_tpl is not None:
      aggregator = self.aggregator_tpl.Instantiate()
      if len(self.metrics) > 1:
        self._aggregate = aggregator
    elif len(self.metrics) > 1:
      raise ValueError(
        f'aggregator_tpl must be set for {len(self.metrics)} metrics, e.g. a'
        ' Config of WeightedSumAggregator'
      )

  def __call__(self, metrics_dict: dict[str, float], global_step: int) -> float:
    values = [metric.get_value(metrics_dict) for metric in self._metrics]
    if any(map(math.isnan, values)):
      return _replace_nan(math.nan, self.reward_for_nan)
    return _SIGNS[self.goal] * self._aggregate(values)

  @property
  def used_metrics(self) -> Sequence[Metric]:
    return self._metrics


class WeightedSumAggregator(MultiObjectiveAggregator):
  """sum(weight * value) / sum(|weight|)."""

  # One weight per metric.
  weights: Sequence[float] | None = None

  def __post_init__(self):
    super().__post_init__()
    self._weights = self.weights or ()
    if not any(self._weights):
      raise ValueError(
        f'weights must be numbers that are not all 0, got {self.weights}'
      )

  def __call__(self, values: Sequence[float]) -> float:
    if len(values) != len(self._weights):
      raise ValueError(
        f'weights must be {len(values)}, one for each metric, got'
        f' {len(self._weights)}'
      )
    total = sum(w * v for w, v in zip(self._weights, values, strict=True))
    return total / sum(map(abs, self._weights))


class TwoObjectiveAggregator(MultiObjectiveAggregator):
  """Reduces a quality and a cost to one value."""

  # The target cost.
  cost_objective: float | None = None
  # Weight of deviations from the target cost; below 0.
  exponent: float = -0.07

  def __post_init__(self):
    super().__post_init__()
    if not self.cost_objective:
      raise ValueError(
        f'cost_objective must be a cost that is not 0, got'
        f' {self.cost_objective}'
      )
    self._objective = self.cost_objective

  def __call__(self, values: Sequence[float]) -> float:
    if len(values) != 2:
      raise ValueError(
        f'{type(self).__name__} wants 2 metrics, a quality and a cost, got'
        f' {len(values)}'
      )
    return self.aggregate(*values)

  @abc.abstractmethod
  def aggregate(self, quality: float, cost: float) -> float:
    """Returns the reduced value."""


class TunasAbsolute(TwoObjectiveAggregator):
  """quality + exponent * |cost / objective - 1|.

  Bender et al., Can weight sharing outperform random architecture search?,
  https://arxiv.org/abs/2008.06120.
  """

  def aggregate(self, quality: float, cost: float) -> float:
    return quality + self.exponent * abs(cost / self._objective - 1)


class MnasHard(TwoObjectiveAggregator):
  """quality * min((cost / objective)^exponent, 1).

  Tan et al., MnasNet, https://arxiv.org/abs/1807.11626.
  """

  def aggregate(self, quality: float, cost: float) -> float:
    return quality * min((cost / self._objective) ** self.exponent, 1.0)


class MnasSoft(TwoObjectiveAggregator):
  """quality * (cost / objective)^exponent.

  Tan et al., MnasNet, https://arxiv.org/abs/1807.11626.
  """

  def aggregate(self, quality: float, cost: float) -> float:
    return quality * (cost / self._objective) ** self.exponent


def weighted_sum_reward(
  metrics_and_weights: Sequence[tuple[Metric, float]],
  goal: str = 'maximize',
  reward_for_nan: float | None = None,
) -> Config[MultiObjective]:
  """Returns the reward that is the weighted mean of metrics.

  Args:
    metrics_and_weights: (metric, weight) pairs.
    goal: 'maximize' or 'minimize'.
    reward_for_nan: the reward if a metric is NaN; None: the trial is skipped.
  """
  return Config(
    MultiObjective,
    metrics=[metric for metric, _ in metrics_and_weights],
    goal=goal,
    aggregator_tpl=Config(
      WeightedSumAggregator,
      weights=[weight for _, weight in metrics_and_weights],
    ),
    reward_for_nan=reward_for_nan,
  )


def _check_goal(goal: str) -> None:
  if goal not in _SIGNS:
    raise ValueError(f"goal must be 'maximize' or 'minimize', got {goal!r}")


def _replace_nan(reward: float, reward_for_nan: float | None) -> float:
  if math.isnan(reward) and reward_for_nan is not None:
    return reward_for_nan
  return reward
