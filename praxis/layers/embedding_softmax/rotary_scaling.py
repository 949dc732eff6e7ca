# SPDX-License-Identifier: Apache-2.0
"""Scaling of rotary position embedding to longer contexts."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer


class LinearRotaryScaling(base_layer.BaseLayer):
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


class Llama3RotaryScaling(base_layer.BaseLayer):
  """Divides low frequencies by a factor, as in Llama 3.1.

  Channels with at least high_freq_factor turns in original_max_position
  positions are unchanged. Those with at most low_freq_factor turns are divided
  by `factor`. Frequencies in between are interpolated.

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
    if not 0 < self.low_freq_factor < self.high_freq_factor:
      raise ValueError(
        'low_freq_factor must be positive and less than high_freq_factor='
        f'{self.high_freq_factor}, got {self.low_freq_factor}; they count '
        'turns in original_max_position positions'
      )

  def __call__(self, timescale: Float[Array, ' half']) -> Float[Array, ' half']:
    """Returns the scaled timescales, in positions."""
    turns = self.original_max_position / (2 * math.pi * timescale)
    span = self.high_freq_factor - self.low_freq_factor
    kept = jnp.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
    frequency = (kept + (1 - kept) / self.factor) / timescale
    return 1 / frequency


def _check_factor(factor: float) -> None:
  if factor <= 0:
    raise ValueError(
      f'factor must be positive, got {factor}; 1 disables scaling'
    )
