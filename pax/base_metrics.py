# SPDX-License-Identifier: Apache-2.0
"""Aggregates (value, weight) pairs into a loss and into metrics."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import struct
from jax.typing import ArrayLike

from praxis import base_hyperparams, base_layer, pax_fiddle, pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
# A value and its weight, on devices or fetched.
WeightedScalar = tuple[ArrayLike, ArrayLike]
WeightedScalars = Mapping[str, WeightedScalar]

# Lower bound of a sum of weights that divides.
MIN_WEIGHT = 1e-6


class BaseMetrics(base_hyperparams.FiddleBaseParameterizable):
  """Aggregates (value, weight) per metric over batches and replicas.

      metrics.store(batch_metrics)   # for each batch
      metrics.finalize()             # {name: (value, weight)}

  Within a step on data-parallel replicas `aggregate` reduces over them.
  """

  def __post_init__(self) -> None:
    super().__post_init__()
    # Stored pairs by name. Subclasses with their own `finalize` read it.
    self._metrics: dict[str, list[WeightedScalar]] = collections.defaultdict(
      list
    )

  def aggregate(
    self,
    batch_metrics: WeightedScalars | Sequence[WeightedScalars],
    reshard: bool | None = False,
  ) -> NestedMap:
    """Returns {name: (value, weight)} over replicas or over batches.

    Args:
      batch_metrics: Metrics of one batch, which are reduced over the replicas
        of the step if there are any; or of several batches.
      reshard: Unused; metrics are not sharded.

    Raises:
      ValueError: The sequence is empty.
    """
    del reshard
    if not isinstance(batch_metrics, Mapping):
      return self._aggregate_batches(batch_metrics)
    selected = NestedMap(
      {key: batch_metrics[key] for key in self._selected_keys(batch_metrics)}
    )
    if not base_layer.is_running_under_pmap():
      return selected
    return NestedMap(
      {key: self.over_replicas(*pair) for key, pair in selected.items()}
    )

  def store(
    self, batch_metrics: WeightedScalars, reshard: bool | None = False
  ) -> None:
    """Stores the metrics of one batch for `finalize`.

    Args:
      batch_metrics: (value, weight) by name.
      reshard: Whether to `aggregate` first, which selects metrics; otherwise
        all are stored.
    """
    if reshard:
      batch_metrics = self.aggregate(batch_metrics, reshard)
    for key, pair in batch_metrics.items():
      self._metrics[key].append(pair)

  def finalize(self) -> NestedMap:
    """Returns {name: (value, weight)} over the stored batches; clears them."""
    stored, self._metrics = self._metrics, collections.defaultdict(list)
    metrics = NestedMap()
    for key, pairs in stored.items():
      # Sums in the dtype of a batch round, saturate (bfloat16) or wrap around.
      values, weights = (
        np.stack([np.asarray(pair[i], np.float64) for pair in pairs])
        for i in (0, 1)
      )
      metrics.update(self.over_batches(key, values, weights))
    return metrics

  def summarize(
    self,
    step_i: int,
    prefix: str,
    write: Callable[[int, str, Any], None] | None = None,
  ) -> NestedMap:
    """Finalizes, logs and writes the metrics, and returns them.

    Args:
      step_i: The training step.
      prefix: Prefix of the tags `prefix/name` and `prefix/name-weight`.
      write: Function (step, tag, value) that writes a summary.
    """
    metrics = self.finalize()
    for key, (value, weight) in metrics.items():
      logging.info('  %s=%f (weight=%f)', key, value, weight)
      if write is not None:
        write(step_i, f'{prefix}/{key}', value)
        write(step_i, f'{prefix}/{key}-weight', weight)
    return metrics

  def over_replicas(self, value: JTensor, weight: JTensor) -> WeightedScalar:
    """Returns (value, weight) over the replicas from the pair of this one."""
    raise NotImplementedError(type(self).__name__)

  def over_batches(
    self, key: str, values: np.ndarray, weights: np.ndarray
  ) -> WeightedScalars:
    """Returns {name: (value, weight)} over batches.

    Args:
      key: Name of the metric.
      values: Values [N, ...] of N batches, in float64.
      weights: Weights [N], in float64.
    """
    raise NotImplementedError(type(self).__name__)

  def _selected_keys(self, batch_metrics: WeightedScalars) -> Sequence[str]:
    keys = getattr(self, 'metric_keys', None)
    return [key for key in batch_metrics if not keys or key in keys]

  def _aggregate_batches(self, batches: Sequence[WeightedScalars]) -> NestedMap:
    if not batches:
      raise ValueError('aggregate needs the metrics of at least 1 batch, got 0')
    for batch in batches:
      self.store(batch, reshard=True)
    return self.finalize()


class MeanMetrics(BaseMetrics):
  """The weighted mean of each metric."""

  # Names of the metrics, those that exist; None is all.
  metric_keys: Sequence[str] | None = None

  def over_replicas(self, value: JTensor, weight: JTensor) -> WeightedScalar:
    total, weight = _psum((value * weight, weight))
    return total / jnp.maximum(weight, MIN_WEIGHT), weight

  def over_batches(
    self, key: str, values: np.ndarray, weights: np.ndarray
  ) -> WeightedScalars:
    total = np.tensordot(weights, values, 1)
    weight = weights.sum(axis=0)
    return {key: (total / np.maximum(weight, MIN_WEIGHT), weight)}


class MaxMetrics(BaseMetrics):
  """The largest value of each metric."""

  # Names of the metrics, those that exist; None is all.
  metric_keys: Sequence[str] | None = None

  def over_replicas(self, value: JTensor, weight: JTensor) -> WeightedScalar:
    axis = base_layer.PMAP_PARALLEL_AXIS_NAME
    return jax.lax.pmax(value, axis), _psum(weight)

  def over_batches(
    self, key: str, values: np.ndarray, weights: np.ndarray
  ) -> WeightedScalars:
    return {key: (values.max(axis=0), weights.sum(axis=0))}


class HistogramMetrics(BaseMetrics):
  """Perplexity, entropy and coverage of a histogram of classes.

  From counts [C], or [G, C] of several groups, summed over batches:
  `<key>_pplx` is the mean over groups of the exponential of the entropy,
  `<key>_entropy` its logarithm, and `<key>_coverage` the fraction of classes
  with counts.
  """

  # Name of the metric with the counts.
  histogram_key: str | None = None

  def over_replicas(self, value: JTensor, weight: JTensor) -> WeightedScalar:
    return _psum((value, weight))

  def over_batches(
    self, key: str, values: np.ndarray, weights: np.ndarray
  ) -> WeightedScalars:
    counts = np.atleast_2d(values.sum(axis=0))
    weight = weights.sum(axis=0)
    probs = counts / max(counts.sum() / len(counts), 1.0)
    entropy = -np.sum(probs * np.log(np.maximum(probs, 1e-30)), axis=-1)
    pplx = np.mean(np.exp(entropy))
    return {
      f'{key}_pplx': (pplx, weight),
      f'{key}_entropy': (np.log(pplx), weight),
      f'{key}_coverage': (np.mean(counts > 0), weight),
    }

  def _selected_keys(self, batch_metrics: WeightedScalars) -> Sequence[str]:
    return [key for key in batch_metrics if key == self.histogram_key]


class CompositeMetrics(BaseMetrics):
  """Merges several metrics; later ones overwrite equal names."""

  # Configs of the metrics, or the metrics.
  metrics_p: Sequence[pax_fiddle.Config[BaseMetrics] | BaseMetrics] | None = (
    None
  )
  # The metrics.
  metrics_calcs: list[BaseMetrics] = dataclasses.field(init=False, repr=False)

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.metrics_p:
      raise ValueError(
        'CompositeMetrics.metrics_p is not set; give it Configs of metrics'
      )
    self.metrics_calcs = [
      metrics
      if isinstance(metrics, BaseMetrics)
      else pax_fiddle.instantiate(metrics)
      for metrics in self.metrics_p
    ]

  def aggregate(
    self,
    batch_metrics: WeightedScalars | Sequence[WeightedScalars],
    reshard: bool | None = False,
  ) -> NestedMap:
    return self._merge(lambda m: m.aggregate(batch_metrics, reshard))

  def store(
    self, batch_metrics: WeightedScalars, reshard: bool | None = False
  ) -> None:
    for metrics in self.metrics_calcs:
      metrics.store(batch_metrics, reshard)

  def finalize(self) -> NestedMap:
    return self._merge(lambda m: m.finalize())

  def _merge(
    self, compute: Callable[[BaseMetrics], WeightedScalars]
  ) -> NestedMap:
    merged = NestedMap()
    for metrics in self.metrics_calcs:
      merged.update(compute(metrics))
    return merged


class UnknownLossError(ValueError, KeyError):
  """The model computes no scalar of the name of the loss."""

  # KeyError quotes its message.
  __str__ = Exception.__str__


class LossAggregator(base_hyperparams.FiddleBaseParameterizable):
  """Takes one weighted scalar as the loss."""

  # Name of that scalar.
  loss_key: str | None = None

  @property
  def summed_names(self) -> Sequence[str]:
    """Names of the scalars whose sum is the loss."""
    return [self.loss_key] if self.loss_key else []

  def aggregate(
    self, batch_metrics: WeightedScalars
  ) -> tuple[JTensor, JTensor, JTensor | None]:
    """Returns (weighted loss, mean loss, weight) in float32.

    Over replicas the weighted losses sum to the mean loss, and the weight is
    the share of this replica. In SPMD both losses are equal and the weight is
    that of the scalar. The weight is None for sums of several losses.

    Raises:
      UnknownLossError: The model computes no scalar of this name.
      TypeError: It is not a (value, weight) pair.
    """
    return _replica_share(*_scalar(batch_metrics, self.loss_key))


class MultiLossAggregator(LossAggregator):
  """Takes the sum of several weighted scalars as the loss."""

  # Names of those scalars.
  loss_keys: Sequence[str] | None = None

  @property
  def summed_names(self) -> Sequence[str]:
    # A subclass may compute another loss of them.
    is_sum = type(self).aggregate is MultiLossAggregator.aggregate
    return self.loss_keys or [] if is_sum else []

  def aggregate(
    self, batch_metrics: WeightedScalars
  ) -> tuple[JTensor, JTensor, JTensor | None]:
    """Returns (weighted loss, mean loss, None), summed over the losses.

    Raises:
      ValueError: `loss_keys` is empty.
      UnknownLossError: The model lacks one of them.
    """
    if not self.loss_keys:
      raise ValueError('MultiLossAggregator.loss_keys must name some losses')
    weighted, mean, _ = zip(
      *(_replica_share(*_scalar(batch_metrics, key)) for key in self.loss_keys),
      strict=True,
    )
    return sum(weighted), sum(mean), None


@dataclasses.dataclass(frozen=True)
class Scalar:
  """A metric value with the interface of clu.values.Scalar."""

  value: JTensor


@struct.dataclass
class WeightedScalarCluMetric:
  """Accumulator of a weighted mean with the interface of clu.metrics.Metric."""

  # Sum of value * weight, and sum of weights.
  weighted_value: JTensor
  weight: JTensor

  @classmethod
  def create(cls, value: JTensor, weight: JTensor) -> WeightedScalarCluMetric:
    """Returns the accumulator of these values, in float32."""
    value, weight = (jnp.asarray(x, jnp.float32) for x in (value, weight))
    return cls(
      weighted_value=jnp.sum(jnp.multiply(value, weight)),
      weight=jnp.sum(weight),
    )

  @classmethod
  def empty(cls) -> WeightedScalarCluMetric:
    """Returns the accumulator of no values."""
    return cls(jnp.float32(0.0), jnp.float32(0.0))

  def merge(self, other: WeightedScalarCluMetric) -> WeightedScalarCluMetric:
    """Returns the accumulator of the values of both."""
    return jax.tree.map(jnp.add, self, other)

  def reduce(self) -> WeightedScalarCluMetric:
    """Returns the sum over the first dimension, of gathered replicas."""
    return jax.tree.map(lambda x: x.sum(axis=0), self)

  def compute(self) -> JTensor:
    """Returns the mean."""
    return self.weighted_value / jnp.maximum(self.weight, MIN_WEIGHT)

  def compute_value(self) -> Scalar:
    """Returns the mean as a value that summary writers accept."""
    return Scalar(self.compute())


def _replica_share(
  value: JTensor, weight: JTensor
) -> tuple[JTensor, JTensor, JTensor]:
  weight = jax.lax.stop_gradient(weight)
  if not base_layer.is_running_under_pmap():
    return value, value, weight
  share = weight / jnp.maximum(_psum(weight), MIN_WEIGHT)
  return value * share, jax.lax.stop_gradient(_psum(value * share)), share


def _scalar(
  batch_metrics: Mapping[str, Any], key: str | None
) -> tuple[JTensor, JTensor]:
  """Returns (value, weight) of one metric in float32."""
  if key is None or key not in batch_metrics:
    raise UnknownLossError(
      f'the loss {key!r} is not among the weighted scalars of the model: '
      f'{", ".join(sorted(batch_metrics))}; set task.train.learner.loss_name'
    )
  metric = batch_metrics[key]
  if isinstance(metric, WeightedScalarCluMetric):
    metric = metric.compute(), metric.weight
  if not isinstance(metric, tuple) or len(metric) != 2:
    raise TypeError(
      f'the loss {key!r} must be a (value, weight) pair or a '
      f'WeightedScalarCluMetric, got {type(metric).__name__}; override '
      'LossAggregator.aggregate for other metrics'
    )
  value, weight = metric
  return jnp.asarray(value, jnp.float32), jnp.asarray(weight, jnp.float32)


def _psum(x: Any) -> Any:
  return jax.lax.psum(x, base_layer.PMAP_PARALLEL_AXIS_NAME)
