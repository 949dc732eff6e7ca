# SPDX-License-Identifier: Apache-2.0
"""Numbers out of what models and metric libraries return."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from pax import base_metrics

Metrics = dict[str, Any]
WeightedScalars = Mapping[str, tuple[Any, Any]]


def is_scalar(v: Any) -> bool:
  """Returns whether it is a number, or an array of them."""
  return isinstance(v, numbers.Number | np.ndarray | jax.Array)


def is_weighted_scalar(v: Any) -> bool:
  """Returns whether it is a (value, weight) pair."""
  return isinstance(v, tuple) and len(v) == 2 and all(map(is_scalar, v))


def is_float_convertible(metric_value: Any) -> bool:
  """Returns whether `as_float` takes it."""
  if isinstance(metric_value, list):
    return bool(metric_value) and all(map(is_weighted_scalar, metric_value))
  return (
    isinstance(metric_value, numbers.Number)
    or is_weighted_scalar(metric_value)
    or _is_scalar_record(metric_value)
  )


def as_float(metric_value: Any) -> float:
  """Returns a number; of (value, weight) pairs it is the weighted mean.

  The scalars of clu and SeqIO are numbers too.

  Raises:
    ValueError: it is none of these.
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
  """Returns the numbers by name, without what is none.

  Raises:
    ValueError: there is something else, and that was not expected.
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
  """Adds `source` to `target`, names as `prefix/name`; returns `target`."""
  head = '' if prefix is None else f'{prefix}/'
  target.update({f'{head}{name}': value for name, value in source.items()})
  return target


def merge_clu_metrics(metrics: Metrics, updated_metrics: Metrics) -> Metrics:
  """Returns each metric over what both have seen; of nothing, the second.

  Raises:
    ValueError: they are not the same metrics.
  """
  if not metrics:
    return updated_metrics
  if metrics.keys() != updated_metrics.keys():
    raise ValueError(
      f'metrics must be those before, {sorted(metrics)}, got'
      f' {sorted(updated_metrics)}'
    )
  return {name: m.merge(updated_metrics[name]) for name, m in metrics.items()}


def compute_metric_values(metrics: Metrics) -> dict[str, Any]:
  """Returns what metrics come to, by name.

  A metric that has a dict of values has them under `metric/key`, and one that
  has a list under `metric/metric_0` or `metric/key_0` and so on.
  """
  found = {}
  for name, metric in metrics.items():
    value = _computed(metric)
    if isinstance(value, Mapping):
      for key, one in value.items():
        found.update(_entries(f'{name}/{key}', one))
    elif isinstance(value, list | tuple):
      found.update(_entries(f'{name}/{name}', value))
    else:
      found[name] = value
  return found


def extract_weighted_scalars_and_clu_metrics(
  metrics: Mapping[str, Any],
) -> tuple[WeightedScalars, Metrics]:
  """Returns (weighted scalars, metrics), of which one is empty.

  Raises:
    TypeError: they are neither, or both are mixed.
  """
  leaves = jax.tree.leaves(
    dict(metrics), is_leaf=lambda x: is_weighted_scalar(x) or _is_metric(x)
  )
  if leaves and all(map(is_weighted_scalar, leaves)):
    return metrics, {}
  if leaves and all(map(_is_metric, leaves)):
    return {}, dict(metrics)
  raise TypeError(
    'metrics must be (value, weight) pairs, or all of them metrics with'
    f' merge and compute, got {dict(metrics)!r}'
  )


def _is_metric(x: Any) -> bool:
  """Whether it is a metric as clu has them, ours included."""
  known = isinstance(x, base_metrics.WeightedScalarCluMetric)
  return known or (hasattr(x, 'merge') and hasattr(x, 'compute'))


def _is_scalar_record(x: Any) -> bool:
  """Whether it is clu's or SeqIO's Scalar, neither of which is needed here."""
  if type(x).__name__ != 'Scalar':
    return False
  return isinstance(getattr(x, 'value', None), numbers.Number | np.ndarray)


def _computed(metric: Any) -> Any:
  compute = getattr(metric, 'compute_value', None) or metric.compute
  return compute()


def _entries(name: str, value: Any) -> Iterator[tuple[str, Any]]:
  if not isinstance(value, list | tuple):
    yield name, value
    return
  for index, one in enumerate(value):
    yield f'{name}_{index}', one
