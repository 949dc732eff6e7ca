# SPDX-License-Identifier: Apache-2.0
"""The results of many batches: weighted means, and a row per example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pax import base_metrics, summaries, xla_passthrough
from praxis import base_layer, py_utils, pytypes

NestedMap = pytypes.NestedMap

_SCALARS = (
  base_layer.SummaryType.SCALAR,
  base_layer.SummaryType.AGGREGATE_SCALAR,
)


class WeightedMeans:
  """Sums (value, weight) pairs by name, in float64."""

  def __init__(self) -> None:
    self._sums: dict[str, np.ndarray] = {}

  def add(self, pairs: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (value, weight) in pairs.items():
      weight = np.float64(weight)
      old = self._sums.get(name, np.zeros(2))
      self._sums[name] = old + [np.float64(value) * weight, weight]

  def pairs(self) -> dict[str, tuple[float, float]]:
    """The mean and the sum of weights of each name."""
    return {
      name: (float(total / max(weight, base_metrics.MIN_WEIGHT)), float(weight))
      for name, (total, weight) in self._sums.items()
    }


class Collected:
  """Takes the outputs of steps; the last is fetched while the next one runs."""

  def __init__(self, loss_name: str | None):
    """Has nothing yet.

    Args:
      loss_name: The weighted scalar whose weight is that of the loss; without
        one all batches weigh the same.
    """
    self._loss_name = loss_name
    self._pending: tuple[Any, NestedMap] | None = None
    self._metrics = WeightedMeans()
    self._loss = WeightedMeans()
    self._summaries = WeightedMeans()
    self._media: dict[str, summaries.media.Media] = {}
    self._rows: list[NestedMap] = []
    self.count = 0

  def add(self, output: Any, kept_on_host: NestedMap) -> None:
    """Takes the output of a step, and of its inputs what stayed behind."""
    pending, self._pending = self._pending, (output, kept_on_host)
    self.count += 1
    self._fetch(pending)

  def finish(self) -> None:
    """Takes the last; to be called before anything is asked."""
    pending, self._pending = self._pending, None
    self._fetch(pending)

  @property
  def loss(self) -> float | None:
    """The mean loss; None without a batch."""
    return self._loss.pairs().get(summaries.tags.LOSS, (None, 0))[0]

  @property
  def metrics(self) -> dict[str, tuple[float, float]]:
    """The mean of each weighted scalar, and its weight."""
    return self._metrics.pairs()

  @property
  def layer_summaries(self) -> dict[str, float]:
    """The mean over batches of each scalar that a layer recorded, by tag."""
    return {name: mean for name, (mean, _) in self._summaries.pairs().items()}

  @property
  def media(self) -> dict[str, summaries.media.Media]:
    """The first images, audio and texts, and all of histograms, by tag."""
    return dict(self._media)

  def examples(self) -> list[tuple[str | None, NestedMap]]:
    """An identity, or None, and the outputs of each example."""
    return [
      (py_utils.get_enumeration_id(example), example)
      for rows in self._rows
      for example in py_utils.tree_unstack(rows, 0)
    ]

  def _fetch(self, pending: tuple[Any, NestedMap] | None) -> None:
    if pending is None:
      return
    output, kept_on_host = pending
    loss, scalars, tensors = jax.device_get(
      (output.loss, output.weighted_scalars, output.summary_tensors)
    )
    self._metrics.add(scalars)
    weight = scalars[self._loss_name][1] if self._loss_name in scalars else 1
    self._loss.add({summaries.tags.LOSS: (loss, weight)})
    self._summaries.add(
      {
        summaries.tags.of_key(key): (value, 1)
        for key, value in tensors.items()
        if base_layer.get_summary_type_from_key(key) in _SCALARS
      }
    )
    for tag, one in summaries.tags.media_of(tensors).items():
      old = self._media.get(tag)
      self._media[tag] = summaries.media.joined(old, one) if old else one
    if jax.tree.leaves(output.per_example_out) or kept_on_host:
      rows = NestedMap(on_host(output.per_example_out))
      xla_passthrough.merge_back_xla_unsupported_batch(rows, kept_on_host)
      self._rows.append(rows)


def agreed(number: int) -> int:
  """Returns what process 0 sees: another one may see a file later."""
  if jax.process_count() == 1:
    return number
  from jax.experimental import multihost_utils

  return int(multihost_utils.broadcast_one_to_all(number))


def on_host(tree: Any) -> Any:
  """Returns global arrays as numpy's, whole on every process."""
  if jax.process_count() == 1:
    return jax.tree.map(np.asarray, jax.device_get(tree))
  from jax.experimental import multihost_utils

  return multihost_utils.process_allgather(tree, tiled=True)
