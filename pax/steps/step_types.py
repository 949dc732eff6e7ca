# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of steps, as step functions and as programs have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import ArrayLike

from praxis import base_layer, pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap

# Arrays by name, each with the rows of the batch as its first dimension: the
# rows of one host as numpy arrays, or all rows as global jax.Arrays.
Batch = NestedMap
# A value and its weight by name: float32, on devices or fetched. Scalars; in
# decoding also arrays, which `task.metrics` reduces.
WeightedScalars = Mapping[str, tuple[ArrayLike, ArrayLike]]

# clu metrics by name: objects with `merge`, `reduce` and `compute`.
CluMetrics = dict[str, Any]

_VALUE, _WEIGHT, _SUMMARY = 'value', 'weight', 'summary'


@struct.dataclass
class BaseStepFnStaticArgs:
  """Arguments of a step function that are not traced.

  Subclasses add hashable fields; each new value compiles the step anew.
  """

  # Rows of the global batch, without padding.
  unpadded_global_batch_size: int | None


@struct.dataclass
class StepFnOutput:
  """Outputs of a step function."""

  # The mean loss: float32 scalar; None in decoding.
  loss: JTensor | None
  # (value, weight) by name.
  weighted_scalars: WeightedScalars
  # Arrays [B, ...] with a row per example.
  per_example_out: NestedMap
  # Summaries by path with the suffix of their SummaryType.
  summary_tensors: dict[str, JTensor]
  # Metrics that are not (value, weight) pairs.
  clu_metrics: CluMetrics | None = None


@dataclasses.dataclass(frozen=True)
class PackedScalar:
  """One entry of a device array; reading it waits for the array."""

  values: JTensor
  index: int

  # The array interface of a scalar.
  shape = ()
  ndim = 0
  dtype = np.dtype(np.float32)

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    del copy  # jax.Array caches its host copy.
    return np.asarray(np.asarray(self.values)[self.index], dtype)

  def __float__(self) -> float:
    return float(np.asarray(self.values)[self.index])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedScalars:
  """Float scalars by (kind, name) in one array, to fetch them at once."""

  values: JTensor
  names: tuple[tuple[str, str], ...] = dataclasses.field(
    metadata={'static': True}
  )

  def of_kind(self, kind: str) -> dict[str, np.floating | PackedScalar]:
    """Returns the scalars of a kind by name."""
    values = self.values
    return {
      name: values[i]
      if isinstance(values, np.ndarray)
      else PackedScalar(values, i)
      for i, (scalar_kind, name) in enumerate(self.names)
      if scalar_kind == kind
    }


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOutput:
  """A StepFnOutput whose float scalars are in one array."""

  # The mean loss: float32 scalar; 0 in decoding.
  loss: JTensor
  # Weighted scalars, and summaries that are float scalars.
  scalars: PackedScalars
  # (array, weight) by name, in decoding only.
  weighted_arrays: dict[str, tuple[ArrayLike, ArrayLike]]
  # Other summaries by path.
  tensors: dict[str, JTensor]
  # Arrays [B, ...] with a row per example. Empty in training unless
  # `task.train.log_train_output_interval_steps` is set.
  per_example_out: NestedMap

  @property
  def weighted_scalars(self) -> NestedMap:
    """(value, weight) by name."""
    weights = self.scalars.of_kind(_WEIGHT)
    return NestedMap(
      {
        name: (value, weights[name])
        for name, value in self.scalars.of_kind(_VALUE).items()
      }
      | self.weighted_arrays
    )

  @property
  def summary_tensors(self) -> dict[str, ArrayLike | PackedScalar]:
    """Summaries by path with the suffix of their SummaryType."""
    return {**self.tensors, **self.scalars.of_kind(_SUMMARY)}


def pack_output(output: StepFnOutput) -> StepOutput:
  """Returns the output with packed float scalars, without clu metrics.

  Of a scalar summary that is an array the mean is kept.

  Raises:
    ValueError: A clu metric is not a weighted scalar too, or a step with a loss
      has a weighted array.
  """
  pairs, summaries = output.weighted_scalars, output.summary_tensors
  if output.loss is not None:
    check_weighted_scalars(pairs)
  arrays = {k: pair for k, pair in pairs.items() if jnp.ndim(pair[0])}
  scalars = {k: pair for k, pair in pairs.items() if k not in arrays}
  if others := sorted({*(output.clu_metrics or ())} - {*pairs}):
    raise ValueError(
      f'programs average (value, weight) pairs, and the metrics {others} are'
      ' not weighted scalars; return pairs or WeightedScalarCluMetric from'
      ' compute_loss and decode, or use a step of Partitioner.partition'
    )
  summaries = {
    key: jnp.mean(x) if x.ndim and is_scalar_summary(key) else x
    for key, x in summaries.items()
  }
  floats = {name: x for name, x in summaries.items() if _is_float_scalar(x)}
  packed = {
    **{(_VALUE, name): pair[0] for name, pair in scalars.items()},
    **{(_WEIGHT, name): pair[1] for name, pair in scalars.items()},
    **{(_SUMMARY, name): x for name, x in floats.items()},
  }
  values = [jnp.asarray(x, jnp.float32) for x in packed.values()]
  return StepOutput(
    loss=jnp.zeros([]) if output.loss is None else output.loss,
    scalars=PackedScalars(
      jnp.stack(values) if values else jnp.zeros(0), tuple(packed)
    ),
    weighted_arrays=arrays,
    tensors={k: x for k, x in summaries.items() if k not in floats},
    per_example_out=output.per_example_out,
  )


def is_scalar_summary(key: str) -> bool:
  """Returns whether the suffix of a key is that of a number."""
  kind = base_layer.get_summary_type_from_key(key)
  scalar = base_layer.SummaryType.SCALAR
  return base_layer.get_summary_base_type(kind) is scalar


def check_weighted_scalars(pairs: Mapping[str, tuple[Any, Any]]) -> None:
  """Checks that values and weights are numbers.

  Raises:
    ValueError: One is an array.
  """
  for name, pair in pairs.items():
    shapes = [jnp.shape(x) for x in pair]
    if any(shapes):
      raise ValueError(
        f'value and weight of the weighted scalar {name!r} must be numbers, got'
        f' the shapes {shapes}; reduce them in compute_loss, or return an array'
        ' among the outputs per example or by add_summary'
      )


def _is_float_scalar(x: JTensor) -> bool:
  return x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.floating)
