# SPDX-License-Identifier: Apache-2.0
"""What a step returns beside the new state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis import pytypes

JTensor = pytypes.JTensor
NestedMap = pytypes.NestedMap

_VALUE, _WEIGHT, _SUMMARY = 'value', 'weight', 'summary'


@dataclasses.dataclass(frozen=True)
class PackedScalar:
  """One entry of an array on a device; reading it waits for the array."""

  values: JTensor
  index: int

  # A scalar like any other.
  shape = ()
  ndim = 0
  dtype = np.dtype(np.float32)

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    del copy  # The host copy of the whole array is made once, and kept.
    return np.asarray(np.asarray(self.values)[self.index], dtype)

  def __float__(self) -> float:
    return float(np.asarray(self.values)[self.index])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedScalars:
  """Float scalars by (kind, name), in one array: a step returns many."""

  values: JTensor
  names: tuple[tuple[str, str], ...] = dataclasses.field(
    metadata={'static': True}
  )

  def of_kind(self, kind: str) -> dict[str, Any]:
    """Returns the scalars of a kind by name."""
    on_host = isinstance(self.values, np.ndarray)
    return {
      name: self.values[i] if on_host else PackedScalar(self.values, i)
      for i, (its_kind, name) in enumerate(self.names)
      if its_kind == kind
    }


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOutput:
  """Results of one step, over the batches of all devices.

  Nothing here is fetched to the host by the step; `jax.device_get` fetches it
  all at once when it is wanted.
  """

  # The loss that was differentiated: float32 scalar.
  loss: JTensor
  # The weighted scalars and the summaries that are float scalars.
  scalars: PackedScalars
  # The other summaries.
  tensors: dict[str, JTensor]
  # One row per example. Empty in training, unless
  # `task.train.log_train_output_interval_steps` asks for it.
  per_example_out: NestedMap

  @property
  def weighted_scalars(self) -> NestedMap:
    """Name -> (value, weight)."""
    weights = self.scalars.of_kind(_WEIGHT)
    return NestedMap(
      {
        name: (value, weights[name])
        for name, value in self.scalars.of_kind(_VALUE).items()
      }
    )

  @property
  def summary_tensors(self) -> dict[str, Any]:
    """Summaries by path, ending in the suffix of their SummaryType."""
    return {**self.tensors, **self.scalars.of_kind(_SUMMARY)}


def make_output(
  loss: JTensor,
  weighted_scalars: Mapping[str, tuple[JTensor, JTensor]],
  summaries: Mapping[str, JTensor],
  per_example_out: NestedMap,
) -> StepOutput:
  """Returns the output of a step, its float scalars packed."""
  floats = {name: x for name, x in summaries.items() if _is_float_scalar(x)}
  named = {
    **{(_VALUE, name): pair[0] for name, pair in weighted_scalars.items()},
    **{(_WEIGHT, name): pair[1] for name, pair in weighted_scalars.items()},
    **{(_SUMMARY, name): x for name, x in floats.items()},
  }
  values = [jnp.asarray(x, jnp.float32) for x in named.values()]
  return StepOutput(
    loss=loss,
    scalars=PackedScalars(
      jnp.stack(values) if values else jnp.zeros(0), tuple(named)
    ),
    tensors={k: x for k, x in summaries.items() if k not in floats},
    per_example_out=per_example_out,
  )


def _is_float_scalar(x: JTensor) -> bool:
  return x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.floating)
