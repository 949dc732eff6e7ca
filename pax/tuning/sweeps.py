# SPDX-License-Identifier: Apache-2.0
"""Common searches: hyperparameters, architectures, parameter sweeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pax.tuning import algorithms, interfaces, points, rewards, space
from pax.tuning.metrics import Metric
from praxis import pax_fiddle

Config = pax_fiddle.Config
SearchHParams = interfaces.SearchHParams

_COST_REWARDS = {
  'tunas': rewards.TunasAbsolute,
  'mnas_hard': rewards.MnasHard,
  'mnas_soft': rewards.MnasSoft,
}


def hyperparameter_tuning(
  metric: Metric,
  max_num_trials: int = 100,
  goal: str = 'maximize',
  *,
  enable_dataset_tuning: bool = False,
  errors_to_skip: list[interfaces.ErrorToSkip] | None = None,
  cross_step_metric_aggregator: (
    Config[interfaces.CrossStepMetricAggregator] | None
  ) = None,
  early_stopping: Config[interfaces.BaseEarlyStoppingPolicy] | None = None,
  reward_for_nan: float | None = None,
  enable_train_programs_tuning: bool = False,
) -> SearchHParams:
  """Returns a grid search for the best `metric`.

  Args:
    metric: the metric to optimize.
    max_num_trials: maximum number of trials.
    goal: 'maximize' or 'minimize'.
    enable_dataset_tuning: ignored; see SearchHParams.
    errors_to_skip: errors that skip a trial.
    cross_step_metric_aggregator: reduces metrics over steps; None: the last.
    early_stopping: policy for trials; None: no early stopping.
    reward_for_nan: the reward if the metric is NaN; None: the trial is skipped.
    enable_train_programs_tuning: ignored; see SearchHParams.
  """
  return SearchHParams(
    search_algorithm=Config(algorithms.Sweeping),
    search_reward=Config(
      rewards.SingleObjective,
      metric=metric,
      goal=goal,
      reward_for_nan=reward_for_nan,
    ),
    early_stopping=early_stopping,
    cross_step_metric_aggregator=cross_step_metric_aggregator,
    max_num_trials=max_num_trials,
    errors_to_skip=errors_to_skip,
    treats_early_stopped_trials_as_done=True,
    enable_dataset_tuning=enable_dataset_tuning,
    enable_train_programs_tuning=enable_train_programs_tuning,
  )


def neural_architecture_search(
  metrics: Metric | Sequence[Metric],
  cost_objective: float | None = None,
  reward_type: str = 'tunas',
  exponent: float = -0.07,
  max_num_trials: int = 10000,
  errors_to_skip: list[interfaces.ErrorToSkip] | None = None,
  cross_step_metric_aggregator: (
    Config[interfaces.CrossStepMetricAggregator] | None
  ) = None,
  early_stopping: Config[interfaces.BaseEarlyStoppingPolicy] | None = None,
  reward_for_nan: float | None = None,
) -> SearchHParams:
  """Returns an evolutionary search for high quality at a target cost.

  Args:
    metrics: the quality, or the quality and the cost.
    cost_objective: the target cost; required with two metrics.
    reward_type: 'tunas', 'mnas_hard' or 'mnas_soft'; see `rewards`.
    exponent: weight of the cost in the reward.
    max_num_trials: maximum number of trials.
    errors_to_skip: errors that skip a trial.
    cross_step_metric_aggregator: reduces metrics over steps; None: the last.
    early_stopping: policy for trials; None: no early stopping.
    reward_for_nan: the reward if a metric is NaN; None: the trial is skipped.

  Raises:
    ValueError: more than two metrics, an unknown `reward_type`, or two metrics
      without `cost_objective`.
  """
  metrics = [metrics] if isinstance(metrics, Metric) else list(metrics)
  if len(metrics) not in (1, 2):
    raise ValueError(f'metrics must be 1 or 2, got {len(metrics)}')
  reward: Config[interfaces.BaseReward]
  if len(metrics) == 1:
    reward = Config(
      rewards.SingleObjective, metric=metrics[0], reward_for_nan=reward_for_nan
    )
  else:
    if reward_type not in _COST_REWARDS:
      raise ValueError(
        f'reward_type must be one of {", ".join(_COST_REWARDS)}, got'
        f' {reward_type!r}'
      )
    if cost_objective is None:
      raise ValueError('cost_objective must be set for 2 metrics, got None')
    aggregator = Config(
      _COST_REWARDS[reward_type],
      cost_objective=cost_objective,
      exponent=exponent,
    )
    reward = Config(
      rewards.MultiObjective,
      metrics=metrics,
      aggregator_tpl=aggregator,
      reward_for_nan=reward_for_nan,
    )
  return SearchHParams(
    search_algorithm=Config(algorithms.RegularizedEvolution),
    search_reward=reward,
    early_stopping=early_stopping,
    cross_step_metric_aggregator=cross_step_metric_aggregator,
    max_num_trials=max_num_trials,
    errors_to_skip=errors_to_skip,
  )


def parameter_sweep(
  combinations: list[tuple[Any, ...]]
  | Mapping[str, Sequence[Any]]
  | None = None,
  *,
  metric: Metric | None = None,
  goal: str = 'maximize',
  enable_dataset_tuning: bool = True,
  enable_partitioner_tuning: bool = False,
  enable_train_programs_tuning: bool = False,
  errors_to_skip: list[interfaces.ErrorToSkip] | None = None,
) -> Callable[[type], type]:
  """Class decorator that adds a sweep to an experiment.

  Args:
    combinations: {constant: values} for all combinations, or a list of tuples:
      names of constants, then one row per trial. None: all combinations of the
      search points of the experiment.
    metric: the metric to optimize; None: trials are listed without a reward.
    goal: 'maximize' or 'minimize'.
    enable_dataset_tuning: ignored; see SearchHParams.
    enable_partitioner_tuning: ignored.
    enable_train_programs_tuning: ignored.
    errors_to_skip: errors that skip a trial.

  Raises:
    ValueError: rows differ in length, or the experiment has no such constant.
  """
  if combinations is not None and not isinstance(combinations, Mapping):
    _check_rows(combinations)
  reward = None
  if metric is not None:
    reward = Config(rewards.SingleObjective, metric=metric, goal=goal)

  def search(self: Any) -> SearchHParams:
    return SearchHParams(
      search_algorithm=Config(algorithms.Sweeping),
      search_reward=reward,
      errors_to_skip=errors_to_skip,
      treats_early_stopped_trials_as_done=True,
      train_to_end=True,
      enable_dataset_tuning=enable_dataset_tuning,
      enable_partitioner_tuning=enable_partitioner_tuning,
      enable_train_programs_tuning=enable_train_programs_tuning,
    )

  def decorate(cls: type) -> type:
    body = {
      '__module__': cls.__module__,
      '__qualname__': cls.__qualname__,
      '__doc__': cls.__doc__,
      'search': search,
    }
    return type(cls.__name__, (cls,), body | _constants(cls, combinations))

  return decorate


def _constants(cls: type, combinations: Any) -> dict[str, Any]:
  """The constants of a subclass that searches `combinations`."""
  if combinations is None:
    return {}
  together = not isinstance(combinations, Mapping)
  names = tuple(combinations[0] if together else combinations)
  for name in names:
    if not hasattr(cls, name):
      raise ValueError(
        f'{cls.__name__} has no constant {name}, which parameter_sweep names'
      )
  if not together:
    return {n: points.oneof(values) for n, values in combinations.items()}
  rows = tuple(combinations[1:])
  columns = dict(zip(names, zip(*rows, strict=True), strict=True))
  # A value of several rows is one candidate.
  search_points = {n: points.oneof(_unique(x)) for n, x in columns.items()}
  return search_points | {
    space.COMBINED_DECISION_ATTR: rows,
    space.COMBINED_DECISION_POINT_NAMES: names,
  }


def _unique(values: Sequence[Any]) -> list[Any]:
  unique: list[Any] = []
  for value in values:
    if not any(type(v) is type(value) and v == value for v in unique):
      unique.append(value)
  return unique


def _check_rows(combinations: Any) -> None:
  if not isinstance(combinations, list) or len(combinations) < 2:
    raise ValueError(
      'combinations must be a dict of lists, or a list of a tuple of names and'
      f' at least 1 tuple of values, got {combinations!r}'
    )
  names = combinations[0]
  for row in combinations:
    if not isinstance(row, tuple) or not row or len(row) != len(names):
      raise ValueError(
        f'combinations must be tuples as long as the first, got {row!r} after'
        f' {names!r}'
      )
  if not all(isinstance(name, str) for name in names):
    raise ValueError(
      f'the first row of combinations must be names of constants, got {names!r}'
    )
