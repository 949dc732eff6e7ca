# SPDX-License-Identifier: Apache-2.0
"""Metrics by pattern: `Metric.eval('loss')` matches names of metrics."""

from __future__ import annotations

import dataclasses
import enum
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MetricAggregationFn = Callable[[Sequence[float]], float]


class MetricType(enum.Enum):
  """The source of a metric."""

  CUSTOM = 0
  TRAIN_METRICS = 1
  EVAL_TRAIN_METRICS = 2
  EVAL_METRICS = 3
  EVAL_SCORING_METRICS = 4
  DECODE_METRICS = 5

  @classmethod
  def metric_schema(cls, metric_type: MetricType) -> tuple[str, str]:
    """Returns the prefix and the section of names of this type."""
    return _SCHEMAS[metric_type]

  @classmethod
  def applies_to_multiple_datasets(cls, metric_type: MetricType) -> bool:
    """Returns whether its names contain that of a dataset."""
    return metric_type in _DATASET_TYPES


_SCHEMAS = {
  MetricType.CUSTOM: ('', ''),
  MetricType.TRAIN_METRICS: ('train', ''),
  MetricType.EVAL_TRAIN_METRICS: ('eval_train', 'metrics'),
  MetricType.EVAL_METRICS: ('eval_test', 'metrics'),
  MetricType.EVAL_SCORING_METRICS: ('eval_test', 'scoring_eval'),
  MetricType.DECODE_METRICS: ('decode_test', ''),
}
_DATASET_TYPES = (
  MetricType.EVAL_METRICS,
  MetricType.EVAL_SCORING_METRICS,
  MetricType.DECODE_METRICS,
)


class MetricAggregator(str, enum.Enum):  # noqa: UP042 (values as in paxml)
  """Reduces several matching values to one."""

  MAX = 0
  MIN = 1
  AVERAGE = 2
  SUM = 3


_AGGREGATIONS: dict[MetricAggregator, MetricAggregationFn] = {
  MetricAggregator.MAX: max,
  MetricAggregator.MIN: min,
  MetricAggregator.AVERAGE: statistics.fmean,
  MetricAggregator.SUM: sum,
}


def _custom_metric(name: str, doc: str) -> Any:
  """A class method that returns the metric of this full name."""

  def make(
    cls: type[Metric],
    sub_experiment_id: str | None = None,
    aggregator: MetricAggregator | MetricAggregationFn | None = None,
  ) -> Metric:
    kind = MetricType.CUSTOM
    return cls(name, kind, None, sub_experiment_id, aggregator)

  make.__doc__ = doc
  return classmethod(make)


def _run_metric(kind: MetricType, doc: str) -> Any:
  """A class method that returns a metric of a type without datasets."""

  def make(
    cls: type[Metric],
    metric_name: str,
    sub_experiment_id: str | None = None,
    aggregator: MetricAggregator | MetricAggregationFn | None = None,
  ) -> Metric:
    return cls(metric_name, kind, None, sub_experiment_id, aggregator)

  make.__doc__ = doc
  return classmethod(make)


def _dataset_metric(kind: MetricType, doc: str) -> Any:
  """A class method that returns a metric of a type with datasets."""

  def make(
    cls: type[Metric],
    metric_name: str,
    dataset_name: str | None = None,
    sub_experiment_id: str | None = None,
    aggregator: MetricAggregator | MetricAggregationFn | None = None,
  ) -> Metric:
    return cls(metric_name, kind, dataset_name, sub_experiment_id, aggregator)

  make.__doc__ = doc
  return classmethod(make)


@dataclasses.dataclass
class Metric:
  """A pattern of metrics, by type and name; case is ignored."""

  # Regex of the last part of the name.
  metric_name: str
  # The source; custom metrics are named in full.
  metric_type: MetricType = MetricType.CUSTOM
  # Regex of the dataset; None: any.
  dataset_name: str | None = None
  # The sub-experiment; None: any.
  sub_experiment_id: str | None = None
  # Reduces several values to one; None: several are an error.
  aggregator: MetricAggregator | MetricAggregationFn | None = None

  def __post_init__(self):
    known = isinstance(self.aggregator, MetricAggregator)
    if not (known or self.aggregator is None or callable(self.aggregator)):
      raise ValueError(
        'aggregator must be a MetricAggregator or a function of a list of'
        f' numbers, got {self.aggregator!r}'
      )

  @property
  def pattern(self) -> str:
    """The regex of full names."""
    category, section = MetricType.metric_schema(self.metric_type)
    if MetricType.applies_to_multiple_datasets(self.metric_type):
      category = f'{category}_{self.dataset_name or "[^/]+"}'
    parts = [part for part in (category, section) if part]
    name = '/'.join([*parts, self.metric_name])
    sub = (
      '(:.+)?'
      if self.sub_experiment_id is None
      else (f':{self.sub_experiment_id}')
    )
    return f'^{name}{sub}$'

  @property
  def is_train_metric(self) -> bool:
    """Whether it is a training metric."""
    return self.pattern.startswith(('^train', '^num_params'))

  @property
  def is_eval_train_metric(self) -> bool:
    """Whether it is an evaluation metric on the next training data."""
    return self.pattern.startswith('^eval_train')

  @property
  def is_eval_metric(self) -> bool:
    """Whether it is an evaluation metric."""
    return self.pattern.startswith(('^eval_test', '^eval_steps'))

  @property
  def is_decode_metric(self) -> bool:
    """Whether it is a decoding metric."""
    return self.pattern.startswith(('^decode_test', '^decode_steps'))

  @property
  def applies_to_multiple_datasets(self) -> bool:
    """Whether metrics of several datasets may match."""
    has_datasets = MetricType.applies_to_multiple_datasets(self.metric_type)
    return has_datasets and self.dataset_name is None

  def match_items(
    self, metric_dict: Mapping[str, float]
  ) -> list[tuple[str, float]]:
    """Returns the (name, value) pairs that match."""
    pattern = re.compile(self.pattern, re.IGNORECASE)
    return [(k, v) for k, v in metric_dict.items() if pattern.match(k)]

  def get_values(self, metric_dict: Mapping[str, float]) -> list[float]:
    """Returns the values that match."""
    return [value for _, value in self.match_items(metric_dict)]

  def get_value(self, metric_dict: Mapping[str, float]) -> float:
    """Returns the matching value; several are reduced by the aggregator.

    Raises:
      ValueError: none matches, or several match and there is no aggregator.
    """
    items = self.match_items(metric_dict)
    if not items:
      raise ValueError(
        f'no metric matches {self.pattern}; there are'
        f' {", ".join(sorted(metric_dict)) or "none"}'
      )
    values = [value for _, value in items]
    if len(values) == 1:
      return values[0]
    if self.aggregator is None:
      raise ValueError(
        f'{self.pattern} wants 1 metric, got'
        f' {", ".join(name for name, _ in items)}; name the dataset or set'
        ' aggregator'
      )
    aggregate = self.aggregator
    if isinstance(aggregate, MetricAggregator):
      aggregate = _AGGREGATIONS[aggregate]
    return aggregate(values)

  train_steps_per_second = _custom_metric(
    'train_steps_per_sec', 'Returns the training steps per second.'
  )
  eval_steps_per_second = _custom_metric(
    'eval_steps_per_sec',
    'Returns the evaluation batches per second, the mean over inputs.',
  )
  decode_steps_per_second = _custom_metric(
    'decode_steps_per_sec',
    'Returns the decoding batches per second, the mean over inputs.',
  )
  num_params = _custom_metric(
    'num_params', 'Returns the number of parameters of the model.'
  )
  train = _run_metric(MetricType.TRAIN_METRICS, 'Returns a training metric.')
  eval_train = _run_metric(
    MetricType.EVAL_TRAIN_METRICS,
    'Returns an evaluation metric on the next training data.',
  )
  eval = _dataset_metric(
    MetricType.EVAL_METRICS, 'Returns an evaluation metric.'
  )
  eval_scoring = _dataset_metric(
    MetricType.EVAL_SCORING_METRICS,
    'Returns an evaluation metric by scoring.',
  )
  decode = _dataset_metric(
    MetricType.DECODE_METRICS, 'Returns a decoding metric.'
  )
