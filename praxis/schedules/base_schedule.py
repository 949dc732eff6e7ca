# SPDX-License-Identifier: Apache-2.0
"""The contract of a schedule: a float32 scalar as a function of the step."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from praxis import base_hyperparams

# A point of a schedule: the step and the value at that step.
Point = tuple[int, float]


class BaseSchedule(base_hyperparams.FiddleBaseParameterizable, abc.ABC):
  """A value that depends on nothing but the step."""

  @abc.abstractmethod
  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    """Returns the value at `step`, counted from 0; `step` may be traced."""


def as_float(step: ArrayLike) -> Float[Array, '']:
  """Returns `step` as float32, so that differences never wrap around."""
  return jnp.asarray(step, jnp.float32)


def progress(step: ArrayLike, begin: float, end: float) -> Float[Array, '']:
  """Returns how far `step` is between `begin` and `end`, clamped to [0, 1]."""
  return jnp.clip((as_float(step) - begin) / (end - begin), 0.0, 1.0)


def check_points(owner: BaseSchedule, start: Point, limit: Point) -> None:
  """Raises ValueError unless `start` is a step before `limit`."""
  for label, point in (('start', start), ('limit', limit)):
    if len(point) != 2:
      raise ValueError(
        f'{type(owner).__name__}.{label} must be (step, value), got {point!r}'
      )
  if start[0] >= limit[0]:
    raise ValueError(
      f'{type(owner).__name__} must start before its limit, got start={start}'
      f' and limit={limit}; give limit a later step'
    )


def check_sorted(owner: BaseSchedule, boundaries: Sequence[int]) -> None:
  """Raises ValueError unless `boundaries` never decrease."""
  if list(boundaries) != sorted(boundaries):
    raise ValueError(
      f'{type(owner).__name__}.boundaries must be sorted, got'
      f' {list(boundaries)}'
    )


def check_lengths(
  owner: BaseSchedule,
  parts: tuple[str, Sequence[object] | None],
  others: tuple[str, Sequence[object] | None],
  *,
  extra: int,
) -> None:
  """Raises ValueError unless len(others) == len(parts) + extra."""
  (parts_name, parts_values), (others_name, others_values) = parts, others
  if parts_values is None or others_values is None:
    raise ValueError(
      f'{type(owner).__name__} needs {parts_name} and {others_name}, got'
      f' {parts_name}={parts_values}, {others_name}={others_values}'
    )
  want = len(parts_values) + extra
  if len(others_values) != want:
    raise ValueError(
      f'{type(owner).__name__}.{others_name} must have {want} entries'
      f' (len({parts_name}) + {extra}), got {len(others_values)}'
    )
