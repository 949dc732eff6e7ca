# SPDX-License-Identifier: Apache-2.0
"""How rotary position embedding is stretched to longer texts."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer


class LinearRotaryScaling(base_layer.BaseLayer):
  """Divides all positions by one number.

  References: position interpolation, https://arxiv.org/abs/2306.15595
  """

  # How many times as long texts become.
  factor: float = 1.0

  def setup(self) -> None:
    _check_factor(self.factor)

  def __call__(self, timescale: Float[Array, 'half']) -> Float[Array, 'half']:
    """Returns the timescales, in steps, of the stretched texts."""
    return timescale * self.factor


class Llama3RotaryScaling(base_layer.BaseLayer):
  """Slows what turns less than about once in the texts of training.

  Channels that turn at least high_freq_factor times in them stay; those that
  turn at most low_freq_factor times are slowed by `factor`; in between, the
  frequency goes from one to the other.

  References: The Llama 3 Herd of Models, https://arxiv.org/abs/2407.21783
  """

  # How many times slower the slow channels become.
  factor: float = 8.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  # The length of the texts of training.
  original_max_position: int = 8192

  def setup(self) -> None:
    _check_factor(self.factor)
    if not 0 < self.low_freq_factor < self.high_freq_factor:
      raise ValueError(
        'low_freq_factor must be positive and less than high_freq_factor='
        f'{self.high_freq_factor}, got {self.low_freq_factor}; they are turns '
        'in original_max_position steps'
      )

  def __call__(self, timescale: Float[Array, 'half']) -> Float[Array, 'half']:
    """Returns the timescales, in steps, of the stretched texts."""
    turns = self.original_max_position / (2 * math.pi * timescale)
    span = self.high_freq_factor - self.low_freq_factor
    kept = jnp.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
    frequency = (kept + (1 - kept) / self.factor) / timescale
    return 1 / frequency


def _check_factor(factor: float) -> None:
  if factor <= 0:
    raise ValueError(
      f'factor must be positive, got {factor}; 1 leaves the positions'
    )
