# SPDX-License-Identifier: Apache-2.0
"""Accumulates step outputs over batches: weighted means and example rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from pax import base_metrics, summaries, xla_passthrough
from pax.steps import StepOutput, WeightedScalars
from praxis import base_layer, py_utils, pytypes

NestedMap = pytypes.NestedMap
# A pytree of arrays.
_TreeT = TypeVar('_TreeT')

_SCALARS = (
  base_layer.SummaryType.SCALAR,
  base_layer.SummaryType.AGGREGATE_SCALAR,
)


# Keys of `MetricAccumulator.sums`.
_METRICS, _LOSS, _SUMMARIES = 'metrics', 'loss', 'summaries'


class WeightedMeans:
  """Weighted means by name, summed in float64."""

  def __init__(self, sums: Mapping[str, Sequence[float]] | None = None):
    """Starts with the `sums` of other means."""
    # Sum of value * weight, and sum of weights.
    self._sums = {
      name: np.array([total, weight], np.float64)
      for name, (total, weight) in (sums or {}).items()
    }

  @property
  def sums(self) -> dict[str, list[float]]:
    """The sum of value * weight, and the sum of weights, by name."""
    return {name: pair.tolist() for name, pair in self._sums.items()}

  def add(self, pairs: WeightedScalars) -> None:
    """Adds one (value, weight) per name."""
    for name, pair in pairs.items():
      value, weight = (np.asarray(x, np.float64) for x in pair)
      old = self._sums.get(name, np.zeros(2))
      self._sums[name] = old + np.array([value * weight, weight])

  def pairs(self) -> dict[str, tuple[float, float]]:
    """Returns (mean, sum of weights) by name."""
    return {
      name: (float(total / max(weight, base_metrics.MIN_WEIGHT)), float(weight))
      for name, (total, weight) in self._sums.items()
    }


class SummaryAccumulator:
  """Means of scalar summaries over batches, and the first media, by tag."""

  def __init__(self, sums: Mapping[str, Sequence[float]] | None = None):
    """Starts with the `sums` of other scalars."""
    self._scalars = WeightedMeans(sums)
    # Images, audio clips and texts of the first batches, and histograms.
    self.media: dict[str, summaries.media.Media] = {}

  @property
  def sums(self) -> dict[str, list[float]]:
    """As `WeightedMeans.sums`."""
    return self._scalars.sums

  @property
  def scalars(self) -> dict[str, float]:
    """The mean over batches of each scalar."""
    return {name: mean for name, (mean, _) in self._scalars.pairs().items()}

  def add(self, tensors: Mapping[str, Any]) -> None:
    """Adds the summaries of a batch, on the host, by key."""
    self._scalars.add(
      {
        summaries.tags.of_key(key): (value, 1)
        for key, value in tensors.items()
        if base_layer.get_summary_type_from_key(key) in _SCALARS
      }
    )
    for tag, media in summaries.tags.media_of(tensors).items():
      if old := self.media.get(tag):
        media = summaries.media.concatenate(old, media)
      self.media[tag] = media


class MetricAccumulator:
  """Means of losses, metrics and summaries, and the rows of all examples.

  The output of a step is fetched while the next step runs.
  """

  def __init__(
    self,
    loss_names: Sequence[str] = (),
    sums: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
  ):
    """Starts without batches.

    Args:
      loss_names: The weighted scalar whose weight is the weight of the loss, or
        those whose sum is the loss; none weights all batches equally.
      sums: `sums` of another accumulator, of batches before.
    """
    self._loss_names = tuple(loss_names)
    self._pending: tuple[StepOutput, NestedMap] | None = None
    sums = sums or {}
    self._metrics = WeightedMeans(sums.get(_METRICS))
    self._loss = WeightedMeans(sums.get(_LOSS))
    self._summaries = SummaryAccumulator(sums.get(_SUMMARIES))
    self._rows: list[NestedMap] = []
    self.num_batches = 0

  def add(self, output: StepOutput, host_inputs: NestedMap) -> None:
    """Adds the output of a step.

    Args:
      output: The output, which devices may still be computing.
      host_inputs: Inputs that devices cannot hold, copied to the rows.
    """
    pending, self._pending = self._pending, (output, host_inputs)
    self.num_batches += 1
    self._fetch(pending)

  def finish(self) -> None:
    """Adds the pending output; call it before reading results."""
    pending, self._pending = self._pending, None
    self._fetch(pending)

  def sums(self) -> dict[str, dict[str, list[float]]]:
    """Returns the sums of losses, metrics and summaries, as JSON has them."""
    return {
      _METRICS: self._metrics.sums,
      _LOSS: self._loss.sums,
      _SUMMARIES: self._summaries.sums,
    }

  @property
  def loss(self) -> float | None:
    """The mean loss; None without a batch."""
    means = self._metrics.pairs()
    if len(self._loss_names) > 1 and means.keys() >= set(self._loss_names):
      return sum(means[name][0] for name in self._loss_names)
    return self._loss.pairs().get(summaries.tags.LOSS, (None, 0))[0]

  @property
  def metrics(self) -> dict[str, tuple[float, float]]:
    """(mean, sum of weights) of each weighted scalar."""
    return self._metrics.pairs()

  @property
  def layer_summaries(self) -> dict[str, float]:
    """The mean over batches of each scalar summary, by tag."""
    return self._summaries.scalars

  @property
  def media(self) -> dict[str, summaries.media.Media]:
    """The first images, audio clips and texts, and the histograms, by tag."""
    return dict(self._summaries.media)

  def examples(self) -> list[tuple[str | None, NestedMap]]:
    """Returns (enumeration id or None, outputs) of each example."""
    return [
      (py_utils.get_enumeration_id(example), example)
      for rows in self._rows
      for example in py_utils.tree_unstack(rows, 0)
    ]

  def _fetch(self, pending: tuple[StepOutput, NestedMap] | None) -> None:
    if pending is None:
      return
    output, host_inputs = pending
    loss, scalars, tensors = jax.device_get(
      (output.loss, output.weighted_scalars, output.summary_tensors)
    )
    self._metrics.add(scalars)
    names = self._loss_names
    has_weight = len(names) == 1 and names[0] in scalars
    weight = scalars[names[0]][1] if has_weight else 1
    self._loss.add({summaries.tags.LOSS: (loss, weight)})
    self._summaries.add(tensors)
    if jax.tree.leaves(output.per_example_out) or host_inputs:
      rows = NestedMap(gather_to_host(output.per_example_out))
      xla_passthrough.merge_back_xla_unsupported_batch(rows, host_inputs)
      self._rows.append(rows)


def broadcast_from_first_process(number: int) -> int:
  """Returns the number of process 0, on all processes.

  Processes may see a file appear at different times.
  """
  if jax.process_count() == 1:
    return number
  from jax.experimental import multihost_utils

  return int(multihost_utils.broadcast_one_to_all(number))


def is_set_on_all_processes(flag: bool) -> bool:
  """Returns whether all processes, which all call it, pass True."""
  if jax.process_count() == 1:
    return flag
  from jax.experimental import multihost_utils

  return bool(np.all(multihost_utils.process_allgather(np.asarray(flag))))


def broadcast_json_from_first_process(value: Any) -> Any:
  """Returns the JSON value of process 0, on all processes."""
  if jax.process_count() == 1:
    return value
  from jax.experimental import multihost_utils

  content = np.frombuffer(json.dumps(value).encode(), np.uint8)
  size = broadcast_from_first_process(content.size)
  content = np.resize(content, size)
  content = np.asarray(multihost_utils.broadcast_one_to_all(content))
  return json.loads(content.astype(np.uint8).tobytes())


def gather_to_host(tree: _TreeT) -> _TreeT:
  """Returns global arrays as full numpy arrays, on every process."""
  if jax.process_count() == 1:
    return jax.tree.map(np.asarray, jax.device_get(tree))
  from jax.experimental import multihost_utils

  return multihost_utils.process_allgather(tree, tiled=True)
