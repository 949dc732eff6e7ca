# SPDX-License-Identifier: Apache-2.0
"""Search for the clipping bound with the smallest quantization error."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)

# Candidate factors of the bound.
_FACTORS = np.linspace(1.0, 0.5, num=11)


def get_best_bound(
  t: Float[Array, '*shape'],
  bound: Float[Array, '*bounds'],
  min_value: int | float,
  max_value: int | float,
  p_value: float = 1.0,
  per_channel: bool = False,
) -> Float[Array, '*bounds']:
  """Returns `bound` times the factor with the smallest error.

  The error is the mean of |dequantized - t| ** p_value over all of `t`, or with
  `per_channel` over the dimensions where `bound` has size 1.

  Args:
    t: the array to quantize.
    bound: the maximum of |t|, a scalar or with the rank of `t`.
    min_value: the minimum quantized value.
    max_value: the maximum quantized value, to which the bound is mapped.
    p_value: exponent of the error.
    per_channel: whether each channel has its own factor.
  """
  axes = None
  if per_channel:
    axes = tuple(i for i in range(t.ndim) if bound.shape[i] == 1)

  def error(factor: Array) -> Array:
    scale = bound * factor / max_value
    dequantized = jnp.clip(jnp.round(t / scale), min_value, max_value) * scale
    power = jnp.abs(dequantized - t) ** p_value
    return jnp.mean(power, axis=axes, keepdims=per_channel)

  factors = jnp.asarray(_FACTORS, bound.dtype)
  errors = jax.vmap(error)(factors)
  return bound * factors[jnp.argmin(errors, axis=0)]
