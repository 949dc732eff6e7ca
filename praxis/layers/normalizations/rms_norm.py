# SPDX-License-Identifier: Apache-2.0
"""RMS normalization, https://arxiv.org/abs/1910.07467."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.layers.normalizations.base import BaseNormalization


class RmsNorm(BaseNormalization):
  """Divides by the root mean square of the last dimension, then scales."""

  # Added to the mean square.
  epsilon: float = 1e-6
  # The variable `scale` is the factor itself instead of the factor - 1.
  direct_scale: bool = True
  # Dtype of the normalization before scaling; None: that of the input.
  intermediate_dtype: Any = None

  def setup(self) -> None:
    super().setup()
    self._create_vector(
      'scale', 1.0 if self.direct_scale else 0.0, regularized=True
    )

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Float[Array, '*B'] | None = None,
  ) -> Float[Array, '*B D']:
    x = inputs
    if self.intermediate_dtype is not None:
      x = x.astype(self.intermediate_dtype)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    normed = x * jax.lax.rsqrt(mean_square + self.epsilon)
    normed = normed.astype(self.fprop_dtype)
    scale = self.theta.scale
    return normed * (scale if self.direct_scale else 1 + scale)


class RmsNormNoScale(BaseNormalization):
  """Divides by the root mean square without a scale; sums in float32."""

  # Added to the mean square.
  epsilon: float = 1e-6

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Float[Array, '*B'] | None = None,
  ) -> Float[Array, '*B D']:
    square = jnp.square(inputs.astype(jnp.float32))
    mean_square = jnp.mean(square, axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(mean_square + self.epsilon)
    return (inputs * factor).astype(inputs.dtype)
