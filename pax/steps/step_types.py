# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of steps: batches, weighted scalars, StepOutput."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from praxis import pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap

# Arrays by name, each with the rows of the batch as its first dimension: the
# rows of one host as numpy arrays, or all rows as global jax.Arrays.
Batch = NestedMap
# A value and its weight by name: float32 scalars, on devices or fetched.
WeightedScalars = Mapping[str, tuple[ArrayLike, ArrayLike]]

_VALUE, _WEIGHT, _SUMMARY = 'value', 'weight', 'summary'


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
    on_host = isinstance(self.values, np.ndarray)
    return {
      name: self.values[i] if on_host else PackedScalar(self.values, i)
      for i, (scalar_kind, name) in enumerate(self.names)
      if scalar_kind == kind
    }


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOutput:
  """Results of one step over the global batch, as device arrays."""

  # The mean loss: float32 scalar.
  loss: JTensor
  # Weighted scalars, and summaries that are float scalars.
  scalars: PackedScalars
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
    )

  @property
  def summary_tensors(self) -> dict[str, ArrayLike | PackedScalar]:
    """Summaries by path with the suffix of their SummaryType."""
    return {**self.tensors, **self.scalars.of_kind(_SUMMARY)}


def make_output(
  loss: JTensor,
  weighted_scalars: WeightedScalars,
  summaries: Mapping[str, JTensor],
  per_example_out: NestedMap,
) -> StepOutput:
  """Returns a StepOutput with packed float scalars.

  Args:
    loss: The mean loss, a scalar.
    weighted_scalars: (value, weight) by name.
    summaries: Summaries by path with the suffix of their SummaryType.
    per_example_out: Arrays with a row per example.
  """
  floats = {name: x for name, x in summaries.items() if _is_float_scalar(x)}
  packed = {
    **{(_VALUE, name): pair[0] for name, pair in weighted_scalars.items()},
    **{(_WEIGHT, name): pair[1] for name, pair in weighted_scalars.items()},
    **{(_SUMMARY, name): x for name, x in floats.items()},
  }
  values = [jnp.asarray(x, jnp.float32) for x in packed.values()]
  return StepOutput(
    loss=loss,
    scalars=PackedScalars(
      jnp.stack(values) if values else jnp.zeros(0), tuple(packed)
    ),
    tensors={k: x for k, x in summaries.items() if k not in floats},
    per_example_out=per_example_out,
  )


def _is_float_scalar(x: JTensor) -> bool:
  return x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.floating)
