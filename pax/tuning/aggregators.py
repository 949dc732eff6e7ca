# SPDX-License-Identifier: Apache-2.0
"""Aggregators: reduce the metrics of a trial's steps to those of the trial."""

from __future__ import annotations

import abc
import math
import statistics

from pax.tuning import interfaces
from pax.tuning.metrics import Metric

# Offset between the steps of two sub-experiments.
SUB_EXPERIMENT_STEP_OFFSET = 1_000_000_000

_REWARD = Metric('reward')


class MultiSubExperimentCrossStepMetricAggregator(
  interfaces.CrossStepMetricAggregator
):
  """Merges the metrics of sub-experiments by step, then aggregates."""

  def __call__(
    self, metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    merged: dict[int, dict[str, float]] = {}
    for step, metrics in metrics_across_steps:
      step %= SUB_EXPERIMENT_STEP_OFFSET
      merged[step] = merged.get(step, {}) | metrics
    if not merged:
      raise ValueError('a trial wants at least 1 step with metrics, got none')
    # Sub-experiments may report at different steps.
    return self.call(sorted(merged.items(), key=lambda item: item[0]))

  @abc.abstractmethod
  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    """Returns metrics by name from (step, metrics), by step and not empty."""


class LastReportedMetricValues(MultiSubExperimentCrossStepMetricAggregator):
  """The metrics of the last step."""

  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    return merged_metrics_across_steps[-1][1]


class AverageMetricValues(MultiSubExperimentCrossStepMetricAggregator):
  """The mean of each metric over the steps that have it."""

  # Number of last values to average; None: all.
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
  """The metrics of the step with the largest value of one.

  The last of those steps; NaN counts only if there is no number.
  """

  # The metric to compare; None: the reward.
  metric: Metric | None = None

  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    return _best(merged_metrics_across_steps, self.metric, 1)


class MetricsWithMinValue(MultiSubExperimentCrossStepMetricAggregator):
  """The metrics of the step with the smallest value of one.

  The last of those steps; NaN counts only if there is no number.
  """

  # The metric to compare; None: the reward.
  metric: Metric | None = None

  def call(
    self, merged_metrics_across_steps: interfaces.History
  ) -> dict[str, float]:
    return _best(merged_metrics_across_steps, self.metric, -1)


def _best(
  history: interfaces.History, metric: Metric | None, sign: int
) -> dict[str, float]:
  metric = metric or _REWARD
  # `max` returns the first of equal values.
  latest_first = [metrics for _, metrics in reversed(history)]

  def rank(metrics: dict[str, float]) -> tuple[bool, float]:
    value = metric.get_value(metrics)
    return not math.isnan(value), sign * value

  return max(latest_first, key=rank)
