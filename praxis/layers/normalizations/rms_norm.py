# SPDX-License-Identifier: Apache-2.0
"""RMS normalization, https://arxiv.org/abs/1910.07467."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

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
    normed = self._normed(x).astype(self.fprop_dtype)
    scale = self.theta.scale
    return normed * (scale if self.direct_scale else 1 + scale)

  def _normed(self, x: Float[Array, '*B D']) -> Float[Array, '*B D']:
    """Returns the inputs over the root mean square of their last dimension."""
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + self.epsilon)


class GroupedRmsNorm(RmsNorm):
  """Divides each of equal parts of the last dimension by its root mean square.

  The scale is of the whole dimension.
  """

  # Number of parts.
  num_groups: int = 1

  def setup(self) -> None:
    super().setup()
    if self.num_groups < 1 or self.dim % self.num_groups:
      raise ValueError(
        f'num_groups of {type(self).__name__} {self.name!r} must divide'
        f' dim={self.dim}, got {self.num_groups}'
      )

  @override
  def _normed(self, x: Float[Array, '*B D']) -> Float[Array, '*B D']:
    groups = x.reshape(*x.shape[:-1], self.num_groups, -1)
    return super()._normed(groups).reshape(x.shape)


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
