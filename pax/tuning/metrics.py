# SPDX-License-Identifier: Apache-2.0
"""Metrics by pattern: `Metric.eval('loss')` finds them among all measured."""

from __future__ import annotations

import dataclasses
import enum
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

AggregationFn = Callable[[Sequence[float]], float]


class MetricType(enum.Enum):
  """Where a metric comes from."""

  CUSTOM = 0
  TRAIN_METRICS = 1
  EVAL_TRAIN_METRICS = 2
  EVAL_METRICS = 3
  EVAL_SCORING_METRICS = 4
  DECODE_METRICS = 5

  @classmethod
  def metric_schema(cls, metric_type: MetricType) -> tuple[str, str]:
    """Returns what names of this type begin with, and what comes after that."""
    return _SCHEMAS[metric_type]

  @classmethod
  def applies_to_multiple_datasets(cls, metric_type: MetricType) -> bool:
    """Whether its names hold that of a dataset."""
    return metric_type in _OF_DATASETS


_SCHEMAS = {
  MetricType.CUSTOM: ('', ''),
  MetricType.TRAIN_METRICS: ('train', ''),
  MetricType.EVAL_TRAIN_METRICS: ('eval_train', 'metrics'),
  MetricType.EVAL_METRICS: ('eval_test', 'metrics'),
  MetricType.EVAL_SCORING_METRICS: ('eval_test', 'scoring_eval'),
  MetricType.DECODE_METRICS: ('decode_test', ''),
}
_OF_DATASETS = (
  MetricType.EVAL_METRICS,
  MetricType.EVAL_SCORING_METRICS,
  MetricType.DECODE_METRICS,
)


class MetricAggregator(str, enum.Enum):  # noqa: UP042 (values as in paxml)
  """Makes one value of those that match a metric."""

  MAX = 0
  MIN = 1
  AVERAGE = 2
  SUM = 3


_AGGREGATIONS: dict[MetricAggregator, AggregationFn] = {
  MetricAggregator.MAX: max,
  MetricAggregator.MIN: min,
  MetricAggregator.AVERAGE: statistics.fmean,
  MetricAggregator.SUM: sum,
}


def _number(name: str, doc: str) -> Any:
  """A class method that makes the metric of this full name."""

  def make(
    cls: type[Metric],
    sub_experiment_id: str | None = None,
    aggregator: MetricAggregator | AggregationFn | None = None,
  ) -> Metric:
    kind = MetricType.CUSTOM
    return cls(name, kind, None, sub_experiment_id, aggregator)

  make.__doc__ = doc
  return classmethod(make)


def _of_run(kind: MetricType, doc: str) -> Any:
  """A class method that makes a metric of a type without datasets."""

  def make(
    cls: type[Metric],
    metric_name: str,
    sub_experiment_id: str | None = None,
    aggregator: MetricAggregator | AggregationFn | None = None,
  ) -> Metric:
    return cls(metric_name, kind, None, sub_experiment_id, aggregator)

  make.__doc__ = doc
  return classmethod(make)


def _of_dataset(kind: MetricType, doc: str) -> Any:
  """A class method that makes a metric of a type with datasets."""

  def make(
    cls: type[Metric],
    metric_name: str,
    dataset_name: str | None = None,
    sub_experiment_id: str | None = None,
    aggregator: MetricAggregator | AggregationFn | None = None,
  ) -> Metric:
    return cls(metric_name, kind, dataset_name, sub_experiment_id, aggregator)

  make.__doc__ = doc
  return classmethod(make)


@dataclasses.dataclass
class Metric:
  """A metric by its type and name; upper and lower case are the same."""

  # A regex of the last part of its name.
  metric_name: str
  # Where it comes from; custom metrics are named in full.
  metric_type: MetricType = MetricType.CUSTOM
  # A regex of its dataset; unset: any.
  dataset_name: str | None = None
  # The sub-experiment it comes from; unset: any.
  sub_experiment_id: str | None = None
  # Makes one value of several; unset: several are an error.
  aggregator: MetricAggregator | AggregationFn | None = None

  def __post_init__(self):
    known = isinstance(self.aggregator, MetricAggregator)
    if not (known or self.aggregator is None or callable(self.aggregator)):
      raise ValueError(
        'aggregator must be a MetricAggregator or a function of a list of'
        f' numbers, got {self.aggregator!r}'
      )

  @property
  def pattern(self) -> str:
    """The regex that its names match."""
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
    """Whether training measures it."""
    return self.pattern.startswith(('^train', '^num_params'))

  @property
  def is_eval_train_metric(self) -> bool:
    """Whether it is measured on training data that come next."""
    return self.pattern.startswith('^eval_train')

  @property
  def is_eval_metric(self) -> bool:
    """Whether evaluation measures it."""
    return self.pattern.startswith(('^eval_test', '^eval_steps'))

  @property
  def is_decode_metric(self) -> bool:
    """Whether decoding measures it."""
    return self.pattern.startswith(('^decode_test', '^decode_steps'))

  @property
  def applies_to_multiple_datasets(self) -> bool:
    """Whether metrics of several datasets may match."""
    many = MetricType.applies_to_multiple_datasets(self.metric_type)
    return many and self.dataset_name is None

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
    """Returns the one value that matches, or what the aggregator makes of them.

    Raises:
      ValueError: none matches, or several do and there is no aggregator.
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
    return _AGGREGATIONS.get(self.aggregator, self.aggregator)(values)

  train_steps_per_second = _number(
    'train_steps_per_sec', 'Returns how many steps a second training does.'
  )
  eval_steps_per_second = _number(
    'eval_steps_per_sec',
    'Returns how many batches a second evaluation does, the mean over inputs.',
  )
  decode_steps_per_second = _number(
    'decode_steps_per_sec',
    'Returns how many batches a second decoding does, the mean over inputs.',
  )
  num_params = _number(
    'num_params', 'Returns how many parameters the model has.'
  )
  train = _of_run(MetricType.TRAIN_METRICS, 'Returns a metric of training.')
  eval_train = _of_run(
    MetricType.EVAL_TRAIN_METRICS,
    'Returns a metric of evaluation on the training data that come next.',
  )
  eval = _of_dataset(MetricType.EVAL_METRICS, 'Returns a metric of evaluation.')
  eval_scoring = _of_dataset(
    MetricType.EVAL_SCORING_METRICS,
    'Returns a metric of evaluation by a score.',
  )
  decode = _of_dataset(
    MetricType.DECODE_METRICS, 'Returns a metric of decoding.'
  )
