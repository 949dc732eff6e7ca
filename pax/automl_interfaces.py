# SPDX-License-Identifier: Apache-2.0
"""What a search consists of, under the names it has in paxml."""

from __future__ import annotations

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
from pax.tuning.space import (
  enable_class_level_hyper_primitives as enable_class_level_hyper_primitives,
)
