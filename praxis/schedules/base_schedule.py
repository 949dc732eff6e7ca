# SPDX-License-Identifier: Apache-2.0
"""BaseSchedule: a float32 scalar as a function of the step."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TypeVar

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from praxis import base_hyperparams

# A point of a schedule: the step and the value at that step.
Point = tuple[int, float]

_FirstT = TypeVar('_FirstT')
_SecondT = TypeVar('_SecondT')


class BaseSchedule(base_hyperparams.FiddleBaseParameterizable, abc.ABC):
  """A value that depends only on the step."""

  @abc.abstractmethod
  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    """Returns the value at `step`, counted from 0; `step` may be traced."""


def as_float(step: ArrayLike) -> Float[Array, '']:
  """Returns `step` as float32, so that differences do not wrap around."""
  return jnp.asarray(step, jnp.float32)


def progress(step: ArrayLike, begin: float, end: float) -> Float[Array, '']:
  """Returns (step - begin) / (end - begin), clamped to [0, 1]."""
  return jnp.clip((as_float(step) - begin) / (end - begin), 0.0, 1.0)


def check_points(owner: BaseSchedule, start: Point, limit: Point) -> None:
  """Checks that `start` is at an earlier step than `limit`.

  Raises:
    ValueError: it is not, or one is not a (step, value) pair.
  """
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
  """Checks that `boundaries` are sorted.

  Raises:
    ValueError: they are not.
  """
  if list(boundaries) != sorted(boundaries):
    raise ValueError(
      f'{type(owner).__name__}.boundaries must be sorted, got'
      f' {list(boundaries)}'
    )


def check_lengths(
  owner: BaseSchedule,
  first: tuple[str, Sequence[_FirstT] | None],
  second: tuple[str, Sequence[_SecondT] | None],
  *,
  extra: int,
) -> tuple[Sequence[_FirstT], Sequence[_SecondT]]:
  """Returns the values of two fields if the second has `extra` more entries.

  Args:
    owner: the schedule.
    first: name and value of a field.
    second: name and value of another field.
    extra: the difference of their lengths.

  Raises:
    ValueError: a field is None, or the lengths differ otherwise.
  """
  (name, values), (other_name, other_values) = first, second
  if values is None or other_values is None:
    raise ValueError(
      f'{type(owner).__name__} needs {name} and {other_name}, got'
      f' {name}={values}, {other_name}={other_values}'
    )
  expected = len(values) + extra
  if len(other_values) != expected:
    raise ValueError(
      f'{type(owner).__name__}.{other_name} must have {expected} entries'
      f' (len({name}) + {extra}), got {len(other_values)}'
    )
  return values, other_values
