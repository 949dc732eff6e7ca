# SPDX-License-Identifier: Apache-2.0
"""Re-exports pax.tuning: all that a search over an experiment needs."""

from __future__ import annotations

from pax.tuning.aggregators import (
  SUB_EXPERIMENT_STEP_OFFSET,
  AverageMetricValues,
  LastReportedMetricValues,
  MetricsWithMaxValue,
  MetricsWithMinValue,
  MultiSubExperimentCrossStepMetricAggregator,
)
from pax.tuning.algorithms import RandomSearch, RegularizedEvolution, Sweeping
from pax.tuning.early_stopping import (
  EarlyStoppingByRank,
  EarlyStoppingByValue,
  EarlyStoppingError,
)
from pax.tuning.interfaces import (
  BaseAlgorithm,
  BaseEarlyStoppingPolicy,
  BaseReward,
  CrossStepMetricAggregator,
  SearchHParams,
)
from pax.tuning.metrics import Metric, MetricAggregator, MetricType
from pax.tuning.optuna_search import OptunaPruner, OptunaSearch
from pax.tuning.points import floatv, intv, oneof
from pax.tuning.rewards import (
  MnasHard,
  MnasSoft,
  MultiObjective,
  MultiObjectiveAggregator,
  SingleObjective,
  TunasAbsolute,
  TwoObjectiveAggregator,
  WeightedSumAggregator,
  weighted_sum_reward,
)
from pax.tuning.space import (
  COMBINED_DECISION_ATTR,
  COMBINED_DECISION_POINT_NAMES,
)
from pax.tuning.sweeps import (
  hyperparameter_tuning,
  neural_architecture_search,
  parameter_sweep,
)

__all__ = [
  'AverageMetricValues',
  'BaseAlgorithm',
  'BaseEarlyStoppingPolicy',
  'BaseReward',
  'COMBINED_DECISION_ATTR',
  'COMBINED_DECISION_POINT_NAMES',
  'CrossStepMetricAggregator',
  'EarlyStoppingByRank',
  'EarlyStoppingByValue',
  'EarlyStoppingError',
  'LastReportedMetricValues',
  'Metric',
  'MetricAggregator',
  'MetricType',
  'MetricsWithMaxValue',
  'MetricsWithMinValue',
  'MnasHard',
  'MnasSoft',
  'MultiObjective',
  'MultiObjectiveAggregator',
  'MultiSubExperimentCrossStepMetricAggregator',
  'OptunaPruner',
  'OptunaSearch',
  'RandomSearch',
  'RegularizedEvolution',
  'SUB_EXPERIMENT_STEP_OFFSET',
  'SearchHParams',
  'SingleObjective',
  'Sweeping',
  'TunasAbsolute',
  'TwoObjectiveAggregator',
  'WeightedSumAggregator',
  'floatv',
  'hyperparameter_tuning',
  'intv',
  'neural_architecture_search',
  'oneof',
  'parameter_sweep',
  'weighted_sum_reward',
]
