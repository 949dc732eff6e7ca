# SPDX-License-Identifier: Apache-2.0
"""Conversion of weighted scalars and clu metrics to numbers."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from pax import base_metrics

# clu metrics by name: objects with `merge` and `compute`.
Metrics = dict[str, Any]
# (value, weight) by name.
WeightedScalars = Mapping[str, tuple[Any, Any]]


def is_scalar(v: Any) -> bool:
  """Returns whether `v` is a number or an array."""
  return isinstance(v, numbers.Number | np.ndarray | jax.Array)


def is_weighted_scalar(v: Any) -> bool:
  """Returns whether `v` is a (value, weight) pair."""
  return isinstance(v, tuple) and len(v) == 2 and all(map(is_scalar, v))


def is_float_convertible(metric_value: Any) -> bool:
  """Returns whether `as_float` accepts the value."""
  if isinstance(metric_value, list):
    return bool(metric_value) and all(map(is_weighted_scalar, metric_value))
  return (
    isinstance(metric_value, numbers.Number)
    or is_weighted_scalar(metric_value)
    or _is_scalar_record(metric_value)
  )


def as_float(metric_value: Any) -> float:
  """Returns a metric as a float.

  Args:
    metric_value: A number, a `Scalar` of clu or SeqIO, a (value, weight) pair,
      or a list of such pairs, which is averaged by weight.

  Raises:
    ValueError: the value has another type.
  """
  if not is_float_convertible(metric_value):
    raise ValueError(
      'a metric must be a number, a (value, weight) pair or a list of such'
      f' pairs, got {metric_value!r}'
    )
  if isinstance(metric_value, tuple | list):
    pairs = metric_value if isinstance(metric_value, list) else [metric_value]
    values, weights = (np.stack(x) for x in zip(*pairs, strict=True))
    return float(np.sum(values * weights) / np.sum(weights))
  return float(getattr(metric_value, 'value', metric_value))


def as_float_dict(
  metric_output: Mapping[str, Any],
  raise_on_non_float_convertible: bool = False,
) -> dict[str, float]:
  """Returns the metrics that are numbers as floats, by name.

  Args:
    metric_output: Values by name.
    raise_on_non_float_convertible: Whether other values raise instead of being
      left out.

  Raises:
    ValueError: a value is not a number, and that raises.
  """
  return {
    name: as_float(value)
    for name, value in metric_output.items()
    if raise_on_non_float_convertible or is_float_convertible(value)
  }


def update_float_dict(
  target: dict[str, float],
  source: Mapping[str, float],
  prefix: str | None = None,
) -> dict[str, float]:
  """Updates `target` with `source` under `prefix/name`; returns `target`."""
  head = '' if prefix is None else f'{prefix}/'
  target.update({f'{head}{name}': value for name, value in source.items()})
  return target


def merge_clu_metrics(metrics: Metrics, updated_metrics: Metrics) -> Metrics:
  """Returns the merge of each pair of metrics of the same name.

  Args:
    metrics: Metrics by name; empty returns `updated_metrics`.
    updated_metrics: Metrics with the same names.

  Raises:
    ValueError: the names differ.
  """
  if not metrics:
    return updated_metrics
  if metrics.keys() != updated_metrics.keys():
    raise ValueError(
      f'updated_metrics must have the names {sorted(metrics)}, got'
      f' {sorted(updated_metrics)}'
    )
  return {name: m.merge(updated_metrics[name]) for name, m in metrics.items()}


def compute_metric_values(metrics: Metrics) -> dict[str, Any]:
  """Returns the computed value of each metric, by name.

  A dict of values is flattened to `metric/key`, and a list of values to
  `metric/metric_0`, or `metric/key_0` within a dict, and so on.
  """
  values: dict[str, Any] = {}
  for name, metric in metrics.items():
    value = _compute(metric)
    if isinstance(value, Mapping):
      for key, element in value.items():
        values.update(_flatten(f'{name}/{key}', element))
    elif isinstance(value, list | tuple):
      values.update(_flatten(f'{name}/{name}', value))
    else:
      values[name] = value
  return values


def extract_weighted_scalars_and_clu_metrics(
  metrics: Mapping[str, Any],
) -> tuple[WeightedScalars, Metrics]:
  """Returns (weighted scalars, clu metrics), one of them empty.

  Raises:
    TypeError: the values are of neither kind, or of both.
  """
  leaves = jax.tree.leaves(
    dict(metrics), is_leaf=lambda x: is_weighted_scalar(x) or _is_metric(x)
  )
  if leaves and all(map(is_weighted_scalar, leaves)):
    return metrics, {}
  if leaves and all(map(_is_metric, leaves)):
    return {}, dict(metrics)
  raise TypeError(
    'metrics must be (value, weight) pairs, or must all have `merge` and'
    f' `compute`, got {dict(metrics)!r}'
  )


def _is_metric(x: Any) -> bool:
  """Returns whether `x` is a clu metric or one of `pax.base_metrics`."""
  if isinstance(x, base_metrics.WeightedScalarCluMetric):
    return True
  return hasattr(x, 'merge') and hasattr(x, 'compute')


def _is_scalar_record(x: Any) -> bool:
  """Returns whether `x` is a `Scalar` of clu or SeqIO.

  The class name decides: neither package is a dependency.
  """
  if type(x).__name__ != 'Scalar':
    return False
  return is_scalar(getattr(x, 'value', None))


def _compute(metric: Any) -> Any:
  compute = getattr(metric, 'compute_value', None) or metric.compute
  return compute()


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
  if not isinstance(value, list | tuple):
    yield name, value
    return
  for index, element in enumerate(value):
    yield f'{name}_{index}', element
