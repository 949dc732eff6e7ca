# SPDX-License-Identifier: Apache-2.0
"""Closed-form schedules: constant, polynomial, exponential, cosine, ..."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from praxis import value_domains
from praxis.schedules import base_schedule

Point = base_schedule.Point


class Constant(base_schedule.BaseSchedule):
  """The same value at every step."""

  value: float = value_domains.field(1.0)

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    return jnp.float32(self.value)


class Polynomial(base_schedule.BaseSchedule):
  """A polynomial from `start` to `limit`, constant before and after.

  With `u` in [0, 1] the progress and `y` the values: y0 + (y1 - y0) u^power
  from the origin 'start', y1 + (y0 - y1) (1 - u)^power from 'limit'.
  """

  # Exponent of the curve.
  power: int = 1
  # First and last (step, value).
  start: Point = (0, 1.0)
  limit: Point = (1, 1.0)
  # The end with slope zero if power > 1: 'start' or 'limit'.
  origin: str = 'start'

  def __post_init__(self) -> None:
    super().__post_init__()
    base_schedule.check_points(self, self.start, self.limit)
    if self.origin not in ('start', 'limit'):
      raise ValueError(
        f"Polynomial.origin must be 'start' or 'limit', got {self.origin!r}"
      )

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    (x0, y0), (x1, y1) = self.start, self.limit
    u = base_schedule.progress(step, x0, x1)
    if self.origin == 'start':
      return jnp.float32(y0) + (y1 - y0) * u**self.power
    return jnp.float32(y1) + (y0 - y1) * (1.0 - u) ** self.power


class Linear(Polynomial):
  """A straight line from `start` to `limit`."""

  power: int = 1


class Exponential(base_schedule.BaseSchedule):
  """Log-linear from `start` to `limit`, constant before and after."""

  # First and last (step, value); both values must be positive.
  start: Point = (0, 1.0)
  limit: Point = (1, 0.5)

  def __post_init__(self) -> None:
    super().__post_init__()
    base_schedule.check_points(self, self.start, self.limit)
    if min(self.start[1], self.limit[1]) <= 0:
      raise ValueError(
        'Exponential needs positive values, got'
        f' start={self.start}, limit={self.limit}'
      )

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    (x0, y0), (x1, y1) = self.start, self.limit
    u = base_schedule.progress(step, x0, x1)
    return jnp.float32(y0) * jnp.exp(u * math.log(y1 / y0))

  @property
  def linear(self) -> Linear:
    """The logarithm of the value."""
    (x0, y0), (x1, y1) = self.start, self.limit
    return Linear.config(
      start=(x0, math.log(y0)), limit=(x1, math.log(y1))
    ).Instantiate()


def half_cosine(
  u: Float[Array, ''], first: float, last: float
) -> Float[Array, '']:
  """Returns half a cosine wave from `first` at u=0 to `last` at u=1."""
  return jnp.float32(last) + (first - last) * 0.5 * (1.0 + jnp.cos(jnp.pi * u))


class Cosine(base_schedule.BaseSchedule):
  """Half a cosine wave over `total_steps`, then constant.

  References:
    Loshchilov and Hutter, SGDR, https://arxiv.org/abs/1608.03983
  """

  initial_value: float = 1.0
  final_value: float = 0.0
  # Steps until `final_value`; positive.
  total_steps: int = 0

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.total_steps <= 0:
      raise ValueError(
        f'Cosine.total_steps must be positive, got {self.total_steps}'
      )

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    u = base_schedule.progress(step, 0, self.total_steps)
    return half_cosine(u, self.initial_value, self.final_value)


class DelayedCosine(base_schedule.BaseSchedule):
  """Half a cosine wave from `start` to `limit`, constant before and after."""

  # First and last (step, value) of the wave.
  start: Point = (0, 1.0)
  limit: Point = (1, 0.5)

  def __post_init__(self) -> None:
    super().__post_init__()
    base_schedule.check_points(self, self.start, self.limit)

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    (x0, y0), (x1, y1) = self.start, self.limit
    return half_cosine(base_schedule.progress(step, x0, x1), y0, y1)

  @property
  def max(self) -> float:
    """The first value."""
    return self.start[1]

  @property
  def min(self) -> float:
    """The last value."""
    return self.limit[1]

  @property
  def linear(self) -> Linear:
    """The phase, from 0 to pi."""
    return Linear.config(
      start=(self.start[0], 0.0), limit=(self.limit[0], math.pi)
    ).Instantiate()


class Transformer(base_schedule.BaseSchedule):
  """Inverse square root after a linear warm-up: the "Noam" schedule.

  References:
    Vaswani et al., section 5.3, https://arxiv.org/abs/1706.03762
  """

  # Steps of the warm-up per worker replica; 0: no warm-up.
  warmup_steps: int = value_domains.field(4000, ge=0)
  # The value is scaled by model_dim^-0.5.
  model_dim: int = value_domains.field(512, ge=1)
  worker_replicas: int = value_domains.field(1, ge=1)
  # The value is constant from this step on; None: decays forever.
  decay_end: int | None = None

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    t = base_schedule.as_float(step)
    if self.decay_end is not None:
      t = jnp.minimum(t, self.decay_end)
    value = (t + 1.0) ** -0.5
    if warmup := self.warmup_steps * self.worker_replicas:
      value = jnp.minimum((t + 1.0) * float(warmup) ** -1.5, value)
    return self.model_dim**-0.5 * value


class SqrtDecay(base_schedule.BaseSchedule):
  """multiplier / sqrt(max(step - offset, decay_start))."""

  decay_start: int = 10000
  multiplier: float = 1.0
  offset: float = 0.0

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.decay_start <= 0:
      raise ValueError(
        f'SqrtDecay.decay_start must be positive, got {self.decay_start}'
      )

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    t = jnp.maximum(
      base_schedule.as_float(step) - self.offset, self.decay_start
    )
    return self.multiplier / jnp.sqrt(t)


class ContinuousSchedule(base_schedule.BaseSchedule):
  """Exponential decay by half-life after `start_step`, down to a minimum."""

  initial_value: float = 1.0
  # Constant until this step.
  start_step: int = 400_000
  half_life_steps: int = 100_000
  # The minimum as a fraction of `initial_value`.
  min: float = 0.01

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.half_life_steps <= 0:
      raise ValueError(
        'ContinuousSchedule.half_life_steps must be positive, got'
        f' {self.half_life_steps}'
      )

  def value_at(self, step: ArrayLike) -> Float[Array, '']:
    after = jnp.maximum(base_schedule.as_float(step) - self.start_step, 0.0)
    fraction = jnp.exp2(-after / self.half_life_steps)
    return self.initial_value * jnp.maximum(fraction, self.min)

  @property
  def exp(self) -> Exponential:
    """The value as a fraction of `initial_value`."""
    num_half_lives = math.log(self.min) / math.log(0.5)
    last_step = self.start_step + self.half_life_steps * num_half_lives
    return Exponential.config(
      start=(self.start_step, 1.0), limit=(last_step, self.min)
    ).Instantiate()
