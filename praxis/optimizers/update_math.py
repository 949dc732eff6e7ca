# SPDX-License-Identifier: Apache-2.0
"""Decay rates, RMS and clipping formulas of several optimizers."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.pytypes import JTensor


def bias_corrected_decay(
  beta2: float, step_counter: Int[Array, '']
) -> Float[Array, '']:
  """Returns the decay rate of a bias-corrected moving average.

  With t = step + 1 it is beta (1 - beta^(t-1)) / (1 - beta^t). An average with
  this decay equals Adam's m / (1 - beta^t).

  References:
    Shazeer and Stern, section 7.1, https://arxiv.org/abs/1804.04235
  """
  t = jnp.asarray(step_counter, jnp.float32) + 1.0
  return beta2 * (1.0 - beta2 ** (t - 1.0)) / (1.0 - beta2**t)


def power_decay(
  exponent: float, step_counter: Int[Array, '']
) -> Float[Array, '']:
  """Returns the decay rate 1 - (step + 1)^-exponent.

  References:
    Shazeer and Stern, section 7.2, https://arxiv.org/abs/1804.04235
  """
  return 1.0 - (jnp.asarray(step_counter, jnp.float32) + 1.0) ** -exponent


def moving_average(
  average: JTensor, value: JTensor, decay: float | JTensor
) -> JTensor:
  """Returns decay * average + (1 - decay) * value."""
  return decay * average + (1.0 - decay) * value


def reduce_mean(array: JTensor) -> Float[Array, '']:
  """Returns the mean of all elements, in float32; 0 if there are none."""
  # A float: the number of elements may exceed an int32.
  return jnp.sum(array.astype(jnp.float32)) / float(max(array.size, 1))


def reduce_rms(array: JTensor) -> Float[Array, '']:
  """Returns the root mean square of all elements, in float32."""
  return jnp.sqrt(reduce_mean(jnp.square(array.astype(jnp.float32))))


def clip_rms(x: JTensor, threshold: float | None) -> JTensor:
  """Returns `x` scaled down to an RMS of at most `threshold`.

  A threshold of None, zero or less disables clipping.

  References:
    Shazeer and Stern, section 6, https://arxiv.org/abs/1804.04235
  """
  if threshold is None or threshold <= 0:
    return x
  return x / jnp.maximum(1.0, reduce_rms(x) / threshold).astype(x.dtype)


def inf_to_nan(x: JTensor) -> JTensor:
  """Replaces infinities by NaN, which clipping does not hide."""
  return jnp.where(jnp.isinf(x), jnp.nan, x)
