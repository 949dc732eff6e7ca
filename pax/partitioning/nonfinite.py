# SPDX-License-Identifier: Apache-2.0
"""Locates the first NaN or inf of a partitioned train step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from pax import host_memory, train_states
from pax.partitioning.partitioned_step import PartitionedStep
from pax.steps import Batch, first_nonfinite, value_magnitudes

TrainState = train_states.TrainState

_KINDS = {'mdl_vars': 'variable ', 'opt_states': 'optimizer state '}
_SHOWN_NAMES = 5


@dataclasses.dataclass(frozen=True)
class NonfiniteReport:
  """Result of running a step again with a record of its values."""

  # Names of non-finite arrays of the state and the batch, with their kind.
  arguments: tuple[str, ...]
  # The first non-finite value; None if all are finite this time.
  origin: first_nonfinite.Origin | None

  def __bool__(self) -> bool:
    """Whether there is a non-finite value."""
    return bool(self.arguments) or self.origin is not None

  def __str__(self) -> str:
    if self.arguments:
      return f'before the step, in {shorten(self.arguments)}'
    return str(self.origin)


def nonfinite_arrays(
  state: TrainState, batch: Batch, mesh: jax.sharding.Mesh
) -> tuple[str, ...]:
  """Returns the names of non-finite arrays, with `NaN` or `inf`.

  Waits for the arrays. Every process of the job has to call it.
  """
  names = _names(state, batch)
  magnitudes = _magnitudes(jax.tree.leaves((state, batch)), mesh)
  return _nonfinite(names, magnitudes)


def locate(
  step: PartitionedStep,
  mesh: jax.sharding.Mesh,
  state: TrainState,
  batch: Batch,
  key: jax.Array,
) -> NonfiniteReport:
  """Runs a step again, compiled with a record of each value.

  Every process of the job has to call it.

  Args:
    step: `(state, batch, key) -> outputs`.
    mesh: The mesh of the step.
    state: The state that enters the step; it stays valid.
    batch: The global batch.
    key: The PRNG key of the step.
  """
  leaves = jax.tree.leaves((state, batch))
  names, magnitudes = _names(state, batch), _magnitudes(leaves, mesh)
  unravel: Callable[[Any], value_magnitudes.Record]

  def transform(
    closed: jex_core.ClosedJaxpr, leaves: Sequence[jax.Array]
  ) -> jax.Array:
    nonlocal unravel
    _, record = value_magnitudes.evaluate(closed, leaves)
    values, unravel = ravel_pytree(record)
    return values

  closed, values = step.run_traced(transform, state, batch, key)
  record = jax.device_get(unravel(np.asarray(values)))
  arguments = [
    first_nonfinite.argument(name, leaf, magnitude, i - len(leaves))
    for i, (name, leaf, magnitude) in enumerate(
      zip(names, leaves, magnitudes, strict=True)
    )
  ]
  arguments.append(first_nonfinite.Value())  # The key.
  origin = first_nonfinite.find(closed, record, arguments)
  return NonfiniteReport(_nonfinite(names, magnitudes), origin)


def _magnitudes(
  leaves: Sequence[jax.Array], mesh: jax.sharding.Mesh
) -> list[float]:
  """Returns the largest magnitude of each array; 0 if it is not of floats."""
  is_float = [value_magnitudes.is_float(x) for x in leaves]
  floats = [x for x, f in zip(leaves, is_float, strict=True) if f]
  arrays = [host_memory.to_device(x, x.sharding) for x in floats]
  compute = jax.jit(
    lambda arrays: jnp.stack([value_magnitudes.magnitude(x) for x in arrays]),
    out_shardings=NamedSharding(mesh, PartitionSpec()),
  )
  with jax.set_mesh(mesh):
    values = iter(np.asarray(compute(arrays)) if arrays else ())
  return [float(next(values)) if f else 0.0 for f in is_float]


def _nonfinite(
  names: Sequence[str], magnitudes: Sequence[float]
) -> tuple[str, ...]:
  return tuple(
    f'{name} ({"NaN" if math.isnan(magnitude) else "inf"})'
    for name, magnitude in zip(names, magnitudes, strict=True)
    if not math.isfinite(magnitude)
  )


def _names(state: TrainState, batch: Batch) -> list[str]:
  """Returns `variable params/lm/w`, `batch ids` and the like by leaf."""
  names = []
  for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]:
    field, _, name = _slash_path(path).partition('/')
    names.append(f'{_KINDS[field]}{name}' if field in _KINDS else field)
  for path, _ in jax.tree_util.tree_flatten_with_path(batch)[0]:
    names.append(f'batch {_slash_path(path)}')
  return names


def _slash_path(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')


def shorten(names: Sequence[str]) -> str:
  """Returns the first names, and the number of the others."""
  shown = ', '.join(names[:_SHOWN_NAMES])
  num_hidden = len(names) - _SHOWN_NAMES
  return f'{shown} and {num_hidden} more' if num_hidden > 0 else shown
