# SPDX-License-Identifier: Apache-2.0
"""The metrics of a trial from those of its steps."""

from __future__ import annotations

import abc
import statistics

from pax.tuning import interfaces
from pax.tuning.metrics import Metric

# Sub-experiments report from multiples of this step on.
SUB_EXPERIMENT_STEP_OFFSET = 1_000_000_000

_REWARD = Metric('reward')


class MultiSubExperimentCrossStepMetricAggregator(
  interfaces.CrossStepMetricAggregator
):
  """Puts what sub-experiments report at one step together, then aggregates."""

  def __call__(
    self, metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    merged: dict[int, dict[str, float]] = {}
    for step, metrics in metrics_across_steps:
      step %= SUB_EXPERIMENT_STEP_OFFSET
      merged[step] = merged.get(step, {}) | metrics
    if not merged:
      raise ValueError('a trial wants at least 1 step with metrics, got none')
    return self.call(list(merged.items()))

  @abc.abstractmethod
  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    """Returns metrics by name from (step, metrics), which are not empty."""


class LastReportedMetricValues(MultiSubExperimentCrossStepMetricAggregator):
  """Those of the last step."""

  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    return merged_metrics_across_steps[-1][1]


class AverageMetricValues(MultiSubExperimentCrossStepMetricAggregator):
  """The mean of each over the steps that have it."""

  # Only this many values, the last ones; unset: all.
  last_n: int | None = None

  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for _, metrics in merged_metrics_across_steps:
      for name, value in metrics.items():
        values.setdefault(name, []).append(value)
    last = slice(None if self.last_n is None else -self.last_n, None)
    return {name: statistics.fmean(v[last]) for name, v in values.items()}


class MetricsWithMaxValue(MultiSubExperimentCrossStepMetricAggregator):
  """Those of the step where one of them is largest, the last of equals."""

  # Which; unset: the reward.
  metric: Metric | None = None

  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    return _best(merged_metrics_across_steps, self.metric, 1)


class MetricsWithMinValue(MultiSubExperimentCrossStepMetricAggregator):
  """Those of the step where one of them is smallest, the last of equals."""

  # Which; unset: the reward.
  metric: Metric | None = None

  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    return _best(merged_metrics_across_steps, self.metric, -1)


def _best(
  history: interfaces.History, metric: Metric | None, sign: int
) -> dict[str, float]:
  metric = metric or _REWARD
  # `max` keeps the first of equals.
  latest_first = [metrics for _, metrics in reversed(history)]
  return max(latest_first, key=lambda found: sign * metric.get_value(found))
