# SPDX-License-Identifier: Apache-2.0
"""Piecewise and cyclic schedules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from praxis import pax_fiddle
from praxis.schedules import base_schedule


def step_function(
  step: ArrayLike,
  boundaries: Sequence[float],
  values: Sequence[ArrayLike],
) -> Float[Array, '']:
  """Returns values[i], where i is the number of boundaries <= `step`."""
  t = base_schedule.as_float(step)
  result = jnp.asarray(values[0], jnp.float32)
  for boundary, value in zip(boundaries, values[1:], strict=True):
    result = jnp.where(t < boundary, result, value)
  return result.astype(jnp.float32)


def _built(
  schedules: Sequence[base_schedule.BaseSchedule | pax_fiddle.Config],
) -> list[base_schedule.BaseSchedule]:
  return [
    s.Instantiate() if isinstance(s, pax_fiddle.Config) else s
    for s in schedules
  ]


class PiecewiseConstant(base_schedule.BaseSchedule):
  """values[i] from step boundaries[i - 1] to boundaries[i]."""

  # Sorted steps.
  boundaries: Sequence[int] | None = None
  # One more than boundaries.
  values: Sequence[float] | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    self._boundaries, self._values = base_schedule.check_lengths(
      self, ('boundaries', self.boundaries), ('values', self.values), extra=1
    )
    base_schedule.check_sorted(self, self._boundaries)

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    return step_function(step, self._boundaries, self._values)


class PiecewiseSchedule(base_schedule.BaseSchedule):
  """schedules[i] from boundaries[i - 1] on, with steps relative to it."""

  # Sorted steps.
  boundaries: Sequence[int] | None = None
  # One more than boundaries.
  schedules: Sequence[base_schedule.BaseSchedule] | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    self._boundaries, schedules = base_schedule.check_lengths(
      self,
      ('boundaries', self.boundaries),
      ('schedules', self.schedules),
      extra=1,
    )
    base_schedule.check_sorted(self, self._boundaries)
    self._schedules = _built(schedules)

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    step = jnp.asarray(step)
    if jnp.issubdtype(step.dtype, jnp.unsignedinteger):
      # Steps before a boundary are negative; float32 would lose odd numbers.
      step = step.astype(jnp.int32)
    begins = [0, *self._boundaries]
    values = [
      schedule.value_at(step - begin)
      for schedule, begin in zip(self._schedules, begins, strict=True)
    ]
    return step_function(step, self._boundaries, values)


class CycleSchedule(base_schedule.BaseSchedule):
  """A cycle of schedules: schedules[i] for steps[i] steps.

  The schedules take the global step, not the step within the cycle.
  """

  schedules: Sequence[base_schedule.BaseSchedule] | None = None
  # Duration of each schedule in steps; positive.
  steps: Sequence[int] | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    schedules, steps = base_schedule.check_lengths(
      self, ('schedules', self.schedules), ('steps', self.steps), extra=0
    )
    if not steps or min(steps) <= 0:
      raise ValueError(f'CycleSchedule.steps must be positive, got {steps}')
    self._schedules = _built(schedules)
    # The step of the cycle at which each schedule ends, exclusive.
    self._ends = list(itertools.accumulate(steps))

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    *ends, length = self._ends
    # Not in float32, which has no odd numbers above 2**24.
    cycle_step = jnp.asarray(step) % length
    values = [schedule.value_at(step) for schedule in self._schedules]
    return step_function(cycle_step, ends, values)
