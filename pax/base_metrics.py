# SPDX-License-Identifier: Apache-2.0
"""How (value, weight) pairs become one loss, and one number per metric."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp

from praxis import base_hyperparams, pax_fiddle, pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
WeightedScalar = pytypes.WeightedScalar
WeightedScalars = Mapping[str, WeightedScalar]

# Below this a sum of weights counts as nothing seen.
MIN_WEIGHT = 1e-6


def weighted_mean(pairs: Sequence[WeightedScalar]) -> WeightedScalar:
  """Returns (sum of value * weight / sum of weights, sum of weights)."""
  total = sum(value * weight for value, weight in pairs)
  weight = sum(weight for _, weight in pairs)
  return total / jnp.maximum(weight, MIN_WEIGHT), weight


class BaseMetrics(base_hyperparams.FiddleBaseParameterizable):
  """Makes one (value, weight) per metric from those of several batches."""

  def aggregate(self, batch_metrics: Sequence[WeightedScalars]) -> NestedMap:
    """Returns {name: (value, weight)} over all of `batch_metrics`."""
    raise NotImplementedError(type(self).__name__)


class MeanMetrics(BaseMetrics):
  """The weighted mean of each metric."""

  # The metrics to keep; None keeps all.
  metric_keys: Sequence[str] | None = None

  def aggregate(self, batch_metrics: Sequence[WeightedScalars]) -> NestedMap:
    return _per_metric(weighted_mean, batch_metrics, self.metric_keys)


class MaxMetrics(BaseMetrics):
  """The largest value of each metric."""

  # The metrics to keep; None keeps all.
  metric_keys: Sequence[str] | None = None

  def aggregate(self, batch_metrics: Sequence[WeightedScalars]) -> NestedMap:
    def largest(pairs: Sequence[WeightedScalar]) -> WeightedScalar:
      value = functools.reduce(jnp.maximum, [value for value, _ in pairs])
      return value, sum(weight for _, weight in pairs)

    return _per_metric(largest, batch_metrics, self.metric_keys)


class CompositeMetrics(BaseMetrics):
  """Several metrics at once; a later one overwrites equal names."""

  metrics_p: Sequence[pax_fiddle.Config[BaseMetrics]] = ()

  def aggregate(self, batch_metrics: Sequence[WeightedScalars]) -> NestedMap:
    merged = NestedMap()
    for metrics_p in self.metrics_p:
      merged.update(metrics_p.Instantiate().aggregate(batch_metrics))
    return merged


class LossAggregator(base_hyperparams.FiddleBaseParameterizable):
  """The loss is one of the weighted scalars."""

  # Name of that scalar.
  loss_key: str | None = None

  def aggregate(
    self, batch_metrics: WeightedScalars
  ) -> tuple[JTensor, JTensor, JTensor]:
    """Returns (mean loss, weighted loss, weight) in float32.

    Raises:
      ValueError: the model computes no scalar of that name.
    """
    loss, weight = _scalar(batch_metrics, self.loss_key)
    return loss, loss * weight, weight


class MultiLossAggregator(LossAggregator):
  """The loss is the weighted mean of several weighted scalars."""

  # Names of those scalars.
  loss_keys: Sequence[str] = ()

  def aggregate(
    self, batch_metrics: WeightedScalars
  ) -> tuple[JTensor, JTensor, JTensor]:
    if not self.loss_keys:
      raise ValueError('MultiLossAggregator.loss_keys must name some losses')
    pairs = [_scalar(batch_metrics, key) for key in self.loss_keys]
    mean, weight = weighted_mean(pairs)
    return mean, sum(value * weight for value, weight in pairs), weight


def _per_metric(
  combine: Callable[[Sequence[WeightedScalar]], WeightedScalar],
  batch_metrics: Sequence[WeightedScalars],
  keys: Sequence[str] | None,
) -> NestedMap:
  if not batch_metrics:
    raise ValueError('aggregate wants the metrics of at least 1 batch, got 0')
  keys = batch_metrics[0] if keys is None else keys
  return NestedMap(
    {key: combine([batch[key] for batch in batch_metrics]) for key in keys}
  )


def _scalar(
  batch_metrics: WeightedScalars, key: str | None
) -> tuple[JTensor, JTensor]:
  if key not in batch_metrics:
    raise ValueError(
      f'the loss {key!r} is none of the weighted scalars the model computes: '
      f'{", ".join(sorted(batch_metrics))}; set task.train.learner.loss_name'
    )
  value, weight = batch_metrics[key]
  return jnp.asarray(value, jnp.float32), jnp.asarray(weight, jnp.float32)
