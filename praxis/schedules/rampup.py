# SPDX-License-Identifier: Apache-2.0
"""Schedules with a linear warm-up from zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from praxis import value_domains
from praxis.schedules import base_schedule, elementary, piecewise


class _RampupDecay(base_schedule.BaseSchedule):
  """Linear warm-up from 0 to max, a plateau until decay_start, then a decay.

  From decay_end on the value is max * min_ratio. Without warm-up steps the
  value at step 0 is `max`.
  """

  # Steps of the linear warm-up.
  warmup_steps: int = 0
  # First and last step of the decay; the last is later.
  decay_start: int = 0
  decay_end: int = 0
  # The final value as a fraction of `max`.
  min_ratio: float = value_domains.field(0.01)
  # The peak; must be positive.
  max: float = value_domains.field(0.0)

  def __post_init__(self) -> None:
    super().__post_init__()
    kind = type(self).__name__
    if self.max <= 0:
      raise ValueError(f'{kind}.max must be positive, got {self.max}')
    if not 0 <= self.warmup_steps <= self.decay_start < self.decay_end:
      raise ValueError(
        f'{kind} needs 0 <= warmup_steps <= decay_start < decay_end, got'
        f' {self.warmup_steps}, {self.decay_start}, {self.decay_end}; set'
        ' decay_end to the step at which the value becomes max * min_ratio'
      )

  def _decay(self, u: Float[Array, '']) -> Float[Array, '']:
    """Returns the value as a fraction of `max` at the progress u of a decay."""
    raise NotImplementedError

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    t = base_schedule.as_float(step)
    ramp = (
      base_schedule.progress(t, 0, self.warmup_steps)
      if self.warmup_steps
      else 1.0
    )
    u = base_schedule.progress(t, self.decay_start, self.decay_end)
    return self.max * (
      jnp.where(t < self.warmup_steps, ramp, self._decay(u))
    ).astype(jnp.float32)


class LinearRampupExponentialDecay(_RampupDecay):
  """Linear warm-up, a plateau, then a log-linear decay."""

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.min_ratio <= 0:
      raise ValueError(
        'LinearRampupExponentialDecay.min_ratio must be positive, got'
        f' {self.min_ratio}; a log-linear decay never reaches zero'
      )

  def _decay(self, u: Float[Array, '']) -> Float[Array, '']:
    return jnp.exp(u * math.log(self.min_ratio))


class LinearRampupPolynomialDecay(_RampupDecay):
  """Linear warm-up, a plateau, then a polynomial decay."""

  # Exponent of the decay.
  power: int = 1

  def _decay(self, u: Float[Array, '']) -> Float[Array, '']:
    return 1.0 + (self.min_ratio - 1.0) * u**self.power


class LinearRampupCosineDecay(_RampupDecay):
  """Linear warm-up, a plateau, then half a cosine wave.

  `start_step` delays the schedule: before it the value is 1.0 for any `max`,
  and all other steps are relative to it.
  """

  # Steps before the schedule begins.
  start_step: int = 0

  def _decay(self, u: Float[Array, '']) -> Float[Array, '']:
    return elementary.half_cosine(u, 1.0, self.min_ratio)

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    t = base_schedule.as_float(step)
    after = super().value_at(t - self.start_step)
    return jnp.where(t < self.start_step, jnp.float32(1.0), after)


class LinearRampupSqrtDecay(base_schedule.BaseSchedule):
  """peak * min(t / warmup, sqrt(warmup / t)) with t = max(step, 1)."""

  # Value at the end of the warm-up.
  peak: float = 1.0
  warmup_steps: int = 4000

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.warmup_steps <= 0:
      raise ValueError(
        'LinearRampupSqrtDecay.warmup_steps must be positive, got'
        f' {self.warmup_steps}'
      )

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    t = jnp.maximum(base_schedule.as_float(step), 1.0)
    decay = jnp.sqrt(self.warmup_steps / t)
    return self.peak * jnp.minimum(t / self.warmup_steps, decay)


class LinearRampupPiecewiseConstant(base_schedule.BaseSchedule):
  """0 -> values[0] until boundaries[0], then values[i] from boundaries[i]."""

  # Steps: the end of the warm-up, then the start of each later value.
  boundaries: Sequence[int] | None = None
  # One value per boundary.
  values: Sequence[float] | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    boundaries, self._values = base_schedule.check_lengths(
      self, ('boundaries', self.boundaries), ('values', self.values), extra=0
    )
    base_schedule.check_sorted(self, boundaries)
    if not boundaries or boundaries[0] <= 0:
      raise ValueError(
        'LinearRampupPiecewiseConstant.boundaries must start with a positive'
        f' step, got {boundaries}'
      )
    self._warmup_end, *self._boundaries = boundaries

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    t = base_schedule.as_float(step)
    ramp = base_schedule.progress(t, 0, self._warmup_end)
    return ramp * piecewise.step_function(t, self._boundaries, self._values)

  @property
  def p0(self) -> elementary.Linear:
    """The warm-up."""
    return elementary.Linear.config(
      start=(0, 0.0), limit=(self._warmup_end, self._values[0])
    ).Instantiate()

  @property
  def p1(self) -> piecewise.PiecewiseConstant:
    """The values after the warm-up, whose end is step 0 of this schedule."""
    return piecewise.PiecewiseConstant.config(
      boundaries=[step - self._warmup_end for step in self._boundaries],
      values=self._values,
    ).Instantiate()
