# SPDX-License-Identifier: Apache-2.0
"""Searches over the constants of an experiment: the one import they need."""

from __future__ import annotations

from pax.tuning.aggregators import (
  SUB_EXPERIMENT_STEP_OFFSET as SUB_EXPERIMENT_STEP_OFFSET,
)
from pax.tuning.aggregators import AverageMetricValues as AverageMetricValues
from pax.tuning.aggregators import (
  LastReportedMetricValues as LastReportedMetricValues,
)
from pax.tuning.aggregators import MetricsWithMaxValue as MetricsWithMaxValue
from pax.tuning.aggregators import MetricsWithMinValue as MetricsWithMinValue
from pax.tuning.aggregators import (
  MultiSubExperimentCrossStepMetricAggregator as MultiSubExperimentCrossStepMetricAggregator,  # noqa: E501
)
from pax.tuning.algorithms import RandomSearch as RandomSearch
from pax.tuning.algorithms import RegularizedEvolution as RegularizedEvolution
from pax.tuning.algorithms import Sweeping as Sweeping
from pax.tuning.early_stopping import EarlyStoppingByRank as EarlyStoppingByRank
from pax.tuning.early_stopping import (
  EarlyStoppingByValue as EarlyStoppingByValue,
)
from pax.tuning.early_stopping import EarlyStoppingError as EarlyStoppingError
from pax.tuning.interfaces import BaseAlgorithm as BaseAlgorithm
from pax.tuning.interfaces import (
  BaseEarlyStoppingPolicy as BaseEarlyStoppingPolicy,
)
from pax.tuning.interfaces import BaseReward as BaseReward
from pax.tuning.interfaces import (
  CrossStepMetricAggregator as CrossStepMetricAggregator,
)
from pax.tuning.interfaces import SearchHParams as SearchHParams
from pax.tuning.metrics import Metric as Metric
from pax.tuning.metrics import MetricAggregator as MetricAggregator
from pax.tuning.metrics import MetricType as MetricType
from pax.tuning.points import floatv as floatv
from pax.tuning.points import intv as intv
from pax.tuning.points import oneof as oneof
from pax.tuning.rewards import MnasHard as MnasHard
from pax.tuning.rewards import MnasSoft as MnasSoft
from pax.tuning.rewards import MultiObjective as MultiObjective
from pax.tuning.rewards import (
  MultiObjectiveAggregator as MultiObjectiveAggregator,
)
from pax.tuning.rewards import SingleObjective as SingleObjective
from pax.tuning.rewards import TunasAbsolute as TunasAbsolute
from pax.tuning.rewards import TwoObjectiveAggregator as TwoObjectiveAggregator
from pax.tuning.rewards import WeightedSumAggregator as WeightedSumAggregator
from pax.tuning.rewards import weighted_sum_reward as weighted_sum_reward
from pax.tuning.space import COMBINED_DECISION_ATTR as COMBINED_DECISION_ATTR
from pax.tuning.space import (
  COMBINED_DECISION_POINT_NAMES as COMBINED_DECISION_POINT_NAMES,
)
from pax.tuning.sweeps import hyperparameter_tuning as hyperparameter_tuning
from pax.tuning.sweeps import (
  neural_architecture_search as neural_architecture_search,
)
from pax.tuning.sweeps import parameter_sweep as parameter_sweep
