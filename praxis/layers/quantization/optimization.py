# SPDX-License-Identifier: Apache-2.0
"""The search for the range of numbers that loses least when quantised."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# What the largest number may be multiplied with.
_FACTORS = np.linspace(1.0, 0.5, num=11)


def get_best_bound(
  t: Float[Array, '*shape'],
  bound: Float[Array, '*bounds'],
  min_value: int | float,
  max_value: int | float,
  p_value: float = 1.0,
  per_channel: bool = False,
) -> Float[Array, '*bounds']:
  """Returns `bound` times the factor with the smallest error of `t`.

  The error is the mean of |quantised - t| ** p_value, over all of `t` or with
  `per_channel` over the dimensions in which `bound` has size 1.

  Args:
    t: what is to be quantised.
    bound: its largest absolute value, of as many dimensions as `t`, or none.
    min_value: the smallest quantised number.
    max_value: the largest one, which stands for the bound.
    p_value: exponent of the error.
    per_channel: whether each channel has a factor of its own.
  """
  axes = None
  if per_channel:
    axes = tuple(i for i in range(t.ndim) if bound.shape[i] == 1)

  def error(factor: Array) -> Array:
    scale = bound * factor / max_value
    restored = jnp.clip(jnp.round(t / scale), min_value, max_value) * scale
    power = jnp.abs(restored - t) ** p_value
    return jnp.mean(power, axis=axes, keepdims=per_channel)

  factors = jnp.asarray(_FACTORS, bound.dtype)
  errors = jax.vmap(error)(factors)
  return bound * factors[jnp.argmin(errors, axis=0)]
