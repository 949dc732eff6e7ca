# SPDX-License-Identifier: Apache-2.0
"""Layer normalization."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.layers.normalizations.base import BaseNormalization


class LayerNorm(BaseNormalization):
  """Normalizes the last dimension to mean 0 and variance 1.

  References: https://arxiv.org/abs/1607.06450
  """

  # The variable `scale` is the factor itself instead of the factor - 1.
  direct_scale: bool = False
  # Added to the variance.
  epsilon: float = 1e-6
  # Learned scale and learned bias.
  use_scale: bool = True
  use_bias: bool = True
  # Computes mean and variance in float32.
  reductions_in_fp32: bool = False

  def setup(self) -> None:
    super().setup()
    if self.use_scale:
      self._create_vector('scale', 1.0 if self.direct_scale else 0.0)
    if self.use_bias:
      self._create_vector('bias', 0.0)

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Float[Array, '*B'] | None = None,
  ) -> Float[Array, '*B D']:
    x = inputs.astype(jnp.float32) if self.reductions_in_fp32 else inputs
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    normed = centered * jax.lax.rsqrt(variance + self.epsilon)
    normed = normed.astype(inputs.dtype)
    if self.use_scale:
      scale = self.theta.scale
      normed *= scale if self.direct_scale else 1 + scale
    if self.use_bias:
      normed += self.theta.bias
    return normed
