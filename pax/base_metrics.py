# SPDX-License-Identifier: Apache-2.0
"""How (value, weight) pairs become one loss, and one number per metric."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import struct

from praxis import base_hyperparams, base_layer, pax_fiddle, pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap
WeightedScalar = pytypes.WeightedScalar
WeightedScalars = Mapping[str, WeightedScalar]
# Makes one pair from those of replicas, or from those of batches.
Combine = Callable[[JTensor, JTensor], WeightedScalar]

# Below this a sum of weights counts as nothing seen.
MIN_WEIGHT = 1e-6


def weighted_mean(pairs: Sequence[WeightedScalar]) -> WeightedScalar:
  """Returns (sum of value * weight / sum of weights, sum of weights)."""
  total = sum(value * weight for value, weight in pairs)
  weight = sum(weight for _, weight in pairs)
  return total / jnp.maximum(weight, MIN_WEIGHT), weight


class BaseMetrics(base_hyperparams.FiddleBaseParameterizable):
  """Makes one (value, weight) per metric from those of several batches.

      metrics.store(batch_metrics)   # for each batch
      metrics.finalize()             # {name: (value, weight)}

  Within a step that runs on replicas `aggregate` makes one batch of theirs.
  """

  def __post_init__(self) -> None:
    super().__post_init__()
    self._stored: dict[str, list[WeightedScalar]] = collections.defaultdict(
      list
    )

  def aggregate(
    self,
    batch_metrics: WeightedScalars | Sequence[WeightedScalars],
    reshard: bool | None = False,
  ) -> NestedMap:
    """Returns {name: (value, weight)} over all replicas, or over batches.

    Given the metrics of one batch, it combines those of the replicas that a
    step runs on, and elsewhere returns them as they are. Given a sequence, it
    combines the batches. `reshard` changes nothing: arrays are whole here.
    """
    del reshard
    if not isinstance(batch_metrics, Mapping):
      return self._of_batches(batch_metrics)
    chosen = NestedMap(
      {key: batch_metrics[key] for key in self._chosen(batch_metrics)}
    )
    if not base_layer.is_running_under_pmap():
      return chosen
    return NestedMap(
      {key: self.over_replicas(*pair) for key, pair in chosen.items()}
    )

  def store(
    self, batch_metrics: WeightedScalars, reshard: bool | None = False
  ) -> None:
    """Adds the metrics of one batch to those to be combined."""
    for key, pair in self.aggregate(batch_metrics, reshard).items():
      self._stored[key].append(pair)

  def finalize(self) -> NestedMap:
    """Returns {name: (value, weight)} of what was stored, and forgets it."""
    stored, self._stored = self._stored, collections.defaultdict(list)
    made = NestedMap()
    for key, pairs in stored.items():
      values, weights = (
        np.stack([np.asarray(pair[i]) for pair in pairs]) for i in (0, 1)
      )
      made.update(self.over_batches(key, values, weights))
    return made

  def summarize(
    self,
    step_i: int,
    prefix: str,
    write: Callable[[int, str, Any], None] | None = None,
  ) -> NestedMap:
    """Logs what `finalize` returns, and writes it by write(step, tag, value).

    Tags are `prefix/name` and `prefix/name-weight`.
    """
    metrics = self.finalize()
    for key, (value, weight) in metrics.items():
      logging.info('  %s=%f (weight=%f)', key, value, weight)
      if write is not None:
        write(step_i, f'{prefix}/{key}', value)
        write(step_i, f'{prefix}/{key}-weight', weight)
    return metrics

  def over_replicas(self, value: JTensor, weight: JTensor) -> WeightedScalar:
    """Returns the pair of all replicas from that of this one."""
    raise NotImplementedError(type(self).__name__)

  def over_batches(
    self, key: str, values: np.ndarray, weights: np.ndarray
  ) -> WeightedScalars:
    """Returns the metrics made of one that has these values, by batch."""
    raise NotImplementedError(type(self).__name__)

  def _chosen(self, batch_metrics: WeightedScalars) -> Sequence[str]:
    keys = getattr(self, 'metric_keys', None)
    return list(batch_metrics) if keys is None else keys

  def _of_batches(self, batches: Sequence[WeightedScalars]) -> NestedMap:
    if not batches:
      raise ValueError('aggregate wants the metrics of at least 1 batch, got 0')
    for batch in batches:
      self.store(batch)
    return self.finalize()


class MeanMetrics(BaseMetrics):
  """The weighted mean of each metric."""

  # The metrics to keep; None keeps all.
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

  # The metrics to keep; None keeps all.
  metric_keys: Sequence[str] | None = None

  def over_replicas(self, value: JTensor, weight: JTensor) -> WeightedScalar:
    axis = base_layer.PMAP_PARALLEL_AXIS_NAME
    return jax.lax.pmax(value, axis), _psum(weight)

  def over_batches(
    self, key: str, values: np.ndarray, weights: np.ndarray
  ) -> WeightedScalars:
    return {key: (values.max(axis=0), weights.sum(axis=0))}


class HistogramMetrics(BaseMetrics):
  """How evenly the classes of a histogram are used.

  From counts [C], or [G, C] of several groups, added up over batches, it makes
  `<key>_pplx`, the mean over groups of the exponential of the entropy,
  `<key>_entropy`, the logarithm of that, and `<key>_coverage`, the fraction of
  classes that were seen.
  """

  # The metric with the counts.
  histogram_key: str | None = None

  def over_replicas(self, value: JTensor, weight: JTensor) -> WeightedScalar:
    return _psum((value, weight))

  def over_batches(
    self, key: str, values: np.ndarray, weights: np.ndarray
  ) -> WeightedScalars:
    counts = np.atleast_2d(values.sum(axis=0).astype(np.float32))
    weight = weights.sum(axis=0)
    probs = counts / max(counts.sum() / len(counts), 1.0)
    entropy = -np.sum(probs * np.log(np.maximum(probs, 1e-30)), axis=-1)
    pplx = np.mean(np.exp(entropy))
    return {
      f'{key}_pplx': (pplx, weight),
      f'{key}_entropy': (np.log(pplx), weight),
      f'{key}_coverage': (np.mean(counts > 0), weight),
    }

  def _chosen(self, batch_metrics: WeightedScalars) -> Sequence[str]:
    return [self.histogram_key]


class CompositeMetrics(BaseMetrics):
  """Several metrics at once; a later one overwrites equal names."""

  # The metrics.
  metrics_p: Sequence[pax_fiddle.Config[BaseMetrics]] | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.metrics_p:
      raise ValueError(
        'CompositeMetrics.metrics_p is not set; give it Configs of metrics'
      )
    self.metrics_calcs = [
      metrics.Instantiate() if hasattr(metrics, 'Instantiate') else metrics
      for metrics in self.metrics_p
    ]

  def aggregate(
    self,
    batch_metrics: WeightedScalars | Sequence[WeightedScalars],
    reshard: bool | None = False,
  ) -> NestedMap:
    return self._merged(lambda m: m.aggregate(batch_metrics, reshard))

  def store(
    self, batch_metrics: WeightedScalars, reshard: bool | None = False
  ) -> None:
    for metrics in self.metrics_calcs:
      metrics.store(batch_metrics, reshard)

  def finalize(self) -> NestedMap:
    return self._merged(lambda m: m.finalize())

  def _merged(self, of: Callable[[BaseMetrics], WeightedScalars]) -> NestedMap:
    merged = NestedMap()
    for metrics in self.metrics_calcs:
      merged.update(of(metrics))
    return merged


class LossAggregator(base_hyperparams.FiddleBaseParameterizable):
  """The loss is one of the weighted scalars."""

  # Name of that scalar.
  loss_key: str | None = None

  def aggregate(
    self, batch_metrics: WeightedScalars
  ) -> tuple[JTensor, JTensor, JTensor | None]:
    """Returns (weighted loss, mean loss, its weight) in float32.

    The weighted losses of replicas add up to the mean loss, which is that of
    all. The weight is the replica's share; without replicas, the loss's own
    weight. It is None where no one number is right.

    Raises:
      ValueError: the model computes no scalar of that name.
    """
    return _share_of_loss(*_scalar(batch_metrics, self.loss_key))


class MultiLossAggregator(LossAggregator):
  """The loss is the sum of several weighted scalars."""

  # Names of those scalars.
  loss_keys: Sequence[str] | None = None

  def aggregate(
    self, batch_metrics: WeightedScalars
  ) -> tuple[JTensor, JTensor, JTensor | None]:
    if not self.loss_keys:
      raise ValueError('MultiLossAggregator.loss_keys must name some losses')
    weighted, mean, _ = zip(
      *(_share_of_loss(*_scalar(batch_metrics, key)) for key in self.loss_keys),
      strict=True,
    )
    return sum(weighted), sum(mean), None


@struct.dataclass
class WeightedScalarCluMetric:
  """A weighted mean that is still being taken; what clu calls a metric."""

  # Sums over what was seen.
  weighted_value: JTensor
  weight: JTensor

  @classmethod
  def create(cls, value: JTensor, weight: JTensor) -> WeightedScalarCluMetric:
    """Returns the mean of these values."""
    return cls(
      weighted_value=jnp.sum(jnp.multiply(value, weight)),
      weight=jnp.sum(weight),
    )

  @classmethod
  def empty(cls) -> WeightedScalarCluMetric:
    """Returns the mean of nothing."""
    return cls(jnp.float32(0.0), jnp.float32(0.0))

  def merge(self, other: WeightedScalarCluMetric) -> WeightedScalarCluMetric:
    """Returns the mean of what both have seen."""
    return jax.tree.map(jnp.add, self, other)

  def compute(self) -> JTensor:
    """Returns the mean."""
    return self.weighted_value / jnp.maximum(self.weight, MIN_WEIGHT)


def _share_of_loss(
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
  if key not in batch_metrics:
    raise ValueError(
      f'the loss {key!r} is none of the weighted scalars the model computes: '
      f'{", ".join(sorted(batch_metrics))}; set task.train.learner.loss_name'
    )
  metric = batch_metrics[key]
  if isinstance(metric, WeightedScalarCluMetric):
    metric = metric.compute(), metric.weight
  value, weight = metric
  return jnp.asarray(value, jnp.float32), jnp.asarray(weight, jnp.float32)


def _psum(x: Any) -> Any:
  return jax.lax.psum(x, base_layer.PMAP_PARALLEL_AXIS_NAME)
