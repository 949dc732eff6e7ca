# SPDX-License-Identifier: Apache-2.0
"""Scaling of the timescales of rotary position embedding."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer


class RotaryScaling(base_layer.BaseLayer):
  """Base class of scalings of rotary position embedding."""

  def __call__(self, timescale: Float[Array, ' half']) -> Float[Array, ' half']:
    """Returns the scaled timescales, in positions."""
    raise NotImplementedError(f'{type(self).__name__}.__call__')

  def amplitude(self) -> float:
    """Returns the factor of rotated queries and keys."""
    return 1.0


class LinearRotaryScaling(RotaryScaling):
  """Divides all positions by a factor.

  References: position interpolation, https://arxiv.org/abs/2306.15595
  """

  # Ratio of the new context length to that of training.
  factor: float = 1.0

  def setup(self) -> None:
    _check_factor(self.factor)

  def __call__(self, timescale: Float[Array, ' half']) -> Float[Array, ' half']:
    """Returns the scaled timescales, in positions."""
    return timescale * self.factor


class Llama3RotaryScaling(RotaryScaling):
  """Divides low frequencies by a factor, as in Llama 3.1.

  Channels with at least high_freq_factor turns in original_max_position
  positions are unchanged. Those with at most low_freq_factor turns are divided
  by `factor`. Frequencies in between are interpolated; with equal numbers of
  turns, as in Llama 4 Scout, there are none.

  References: The Llama 3 Herd of Models, https://arxiv.org/abs/2407.21783
  """

  # Divisor of low frequencies.
  factor: float = 8.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  # Context length of training.
  original_max_position: int = 8192

  def setup(self) -> None:
    _check_factor(self.factor)
    if not 0 < self.low_freq_factor <= self.high_freq_factor:
      raise ValueError(
        'low_freq_factor must be positive and at most high_freq_factor='
        f'{self.high_freq_factor}, got {self.low_freq_factor}; they count '
        'turns in original_max_position positions'
      )

  def __call__(self, timescale: Float[Array, ' half']) -> Float[Array, ' half']:
    """Returns the scaled timescales, in positions."""
    turns = self.original_max_position / (2 * math.pi * timescale)
    span = self.high_freq_factor - self.low_freq_factor
    if span:
      kept = jnp.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
    else:
      kept = (turns >= self.high_freq_factor).astype(timescale.dtype)
    frequency = (kept + (1 - kept) / self.factor) / timescale
    return 1 / frequency


class YarnRotaryScaling(RotaryScaling):
  """Divides low frequencies by a factor, and sharpens attention, as in YaRN.

  The channel with beta_fast turns in original_max_position positions, and those
  before it, are unchanged. From the one with beta_slow turns on, frequencies
  are divided by `factor`. In between the share is linear in the channel.

  References: YaRN, https://arxiv.org/abs/2309.00071
  """

  # Divisor of low frequencies.
  factor: float = 4.0
  # Context length of training.
  original_max_position: int = 4096
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  # Rounds the two channels to whole ones, outwards.
  truncate: bool = True
  # Factor of queries and keys. None: 1 + ln(factor) / 10.
  attention_factor: float | None = None

  def setup(self) -> None:
    _check_factor(self.factor)
    if not 0 < self.beta_slow <= self.beta_fast:
      raise ValueError(
        f'beta_slow must be positive and at most beta_fast={self.beta_fast}, '
        f'got {self.beta_slow}; they count turns in original_max_position '
        'positions'
      )

  def __call__(self, timescale: Float[Array, ' half']) -> Float[Array, ' half']:
    """Returns the scaled timescales, in positions."""
    half = len(timescale)
    first = self._channel(timescale, self.beta_fast)
    last = self._channel(timescale, self.beta_slow)
    if self.truncate:
      first, last = jnp.floor(first), jnp.ceil(last)
    first, last = jnp.maximum(first, 0), jnp.minimum(last, 2 * half - 1)
    # Both may be the same channel.
    span = jnp.where(first == last, 0.001, last - first)
    divided = jnp.clip((jnp.arange(half) - first) / span, 0.0, 1.0)
    frequency = (divided / self.factor + 1 - divided) / timescale
    return 1 / frequency

  def _channel(
    self, timescale: Float[Array, ' half'], turns: float
  ) -> Float[Array, '']:
    """Returns the fractional channel with a number of turns."""
    wanted = self.original_max_position / (2 * math.pi * turns)
    ratio = jnp.log(timescale[1] / timescale[0])
    return jnp.log(wanted / timescale[0]) / ratio

  def amplitude(self) -> float:
    """Returns the factor of rotated queries and keys."""
    if self.attention_factor is not None:
      return self.attention_factor
    return 1.0 + 0.1 * math.log(max(self.factor, 1.0))


class ProportionalRotaryScaling(RotaryScaling):
  """Rotates a fraction of the pairs, those with the highest frequencies.

  Unlike with `rotary_dims`, frequencies and pairs are those of the whole head
  (Gemma 4).
  """

  # Fraction of the pairs that are rotated.
  fraction: float = 1.0
  # Divisor of the frequencies.
  factor: float = 1.0

  def setup(self) -> None:
    _check_factor(self.factor)
    if not 0 < self.fraction <= 1:
      raise ValueError(
        f'fraction must be positive and at most 1, got {self.fraction}; 1'
        ' rotates all pairs'
      )

  def __call__(self, timescale: Float[Array, ' half']) -> Float[Array, ' half']:
    """Returns the scaled timescales, infinite for pairs without a rotation."""
    half = len(timescale)
    is_rotated = jnp.arange(half) < int(self.fraction * half)
    return jnp.where(is_rotated, timescale * self.factor, jnp.inf)


def _check_factor(factor: float) -> None:
  if factor <= 0:
    raise ValueError(
      f'factor must be positive, got {factor}; 1 disables scaling'
    )
