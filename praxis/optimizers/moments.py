# SPDX-License-Identifier: Apache-2.0
"""The few formulas that several optimizers share."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis.pytypes import JTensor


def bias_corrected_decay(
  decay: float, count: Int[Array, '']
) -> Float[Array, '']:
  """Returns the decay rate that keeps a moving average free of its start.

  With t = count + 1 it is decay (1 - decay^(t-1)) / (1 - decay^t): the average
  so updated equals Adam's m / (1 - decay^t), without storing the biased one.

  References:
    Shazeer and Stern, section 7.1, https://arxiv.org/abs/1804.04235
  """
  t = count.astype(jnp.float32) + 1.0
  return decay * (1.0 - decay ** (t - 1.0)) / (1.0 - decay**t)


def power_decay(exponent: float, count: Int[Array, '']) -> Float[Array, '']:
  """Returns 1 - (count + 1)^-exponent, a decay rate that rises to one."""
  return 1.0 - (count.astype(jnp.float32) + 1.0) ** -exponent


def reduce_rms(x: JTensor) -> Float[Array, '']:
  """Returns the root of the mean square of all elements, in float32."""
  return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))


def clip_rms(x: JTensor, threshold: float | None) -> JTensor:
  """Returns `x` scaled down to an RMS of at most `threshold`.

  None, zero or a negative threshold means no clipping.
  """
  if threshold is None or threshold <= 0:
    return x
  return x / jnp.maximum(1.0, reduce_rms(x) / threshold).astype(x.dtype)


def inf_to_nan(x: JTensor) -> JTensor:
  """Returns `x` with infinities as NaN, which no later clipping can hide."""
  return jnp.where(jnp.isinf(x), jnp.nan, x)
