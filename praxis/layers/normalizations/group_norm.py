# SPDX-License-Identifier: Apache-2.0
"""Group normalization."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis.layers.normalizations.base import BaseNormalization
from praxis.layers.normalizations.moments import compute_moments


class GroupNorm(BaseNormalization):
  """Normalizes groups of channels of each example by their moments.

  Inputs are [B, T, D], [B, H, W, D] or [B, T, H, W, D].

  References: https://arxiv.org/abs/1803.08494
  """

  # Number of groups, limited by min_group_size.
  num_groups: int = 32
  min_group_size: int = 1
  # Uses cumulative moments over time: each step those of all earlier steps.
  cumulative: bool = False
  # Rank of the inputs: 3, 4 or 5.
  input_rank: int | None = None
  # Added to the variance.
  epsilon: float = 1e-3
  # Sets the output to 0 at padding.
  set_padded_output_to_zero: bool = True
  # Learned scale and learned bias.
  use_scale: bool = True
  use_bias: bool = True

  def setup(self) -> None:
    super().setup()
    if self.input_rank not in (3, 4, 5):
      raise ValueError(f'input_rank must be 3, 4 or 5, got {self.input_rank}')
    if self.num_groups < 1 or (
      self.dim > self.num_groups and self.dim % self.num_groups
    ):
      raise ValueError(
        f'num_groups must be positive and divide dim {self.dim}, got '
        f'{self.num_groups}'
      )
    if self.dim % self._group_size:
      raise ValueError(
        f'dim must be a multiple of the group size {self._group_size}, got '
        f'{self.dim}; change num_groups or min_group_size'
      )
    if self.use_scale:
      self._create_vector('gamma', 0.0, rank=self.input_rank)
    if self.use_bias:
      self._create_vector('beta', 0.0, rank=self.input_rank)

  @property
  def _group_size(self) -> int:
    return max(self.dim // self.num_groups, self.min_group_size)

  def __call__(
    self,
    inputs: Float[Array, 'B T *rest'],
    paddings: Num[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T *rest']:
    """Returns the normalized inputs; `paddings` has the first two dims."""
    if inputs.ndim != self.input_rank:
      raise ValueError(
        f'inputs must have input_rank {self.input_rank}, got {inputs.shape}'
      )
    inputs, paddings = self._cast_to_fprop_dtype((inputs, paddings))
    if paddings is None:
      paddings = jnp.zeros(inputs.shape[:2], inputs.dtype)
    padded = paddings.reshape(paddings.shape + (1,) * (inputs.ndim - 2))
    normed = self._normalize(inputs, padded[..., None])
    if self.use_scale:
      normed *= 1.0 + self.theta.gamma
    if self.use_bias:
      normed += self.theta.beta
    if self.set_padded_output_to_zero:
      normed *= 1.0 - padded
    return normed.astype(inputs.dtype)

  def _normalize(
    self, inputs: Float[Array, 'B T *rest'], padding: Array
  ) -> Float[Array, 'B T *rest']:
    grouped = inputs.reshape(*inputs.shape[:-1], -1, self._group_size)
    # All dimensions but batch, groups, and time if moments are cumulative.
    first = 2 if self.cumulative else 1
    dims = [*range(first, inputs.ndim - 1), inputs.ndim]
    mean, variance = compute_moments(
      grouped,
      padding,
      dims,
      cumulative_axis=1 if self.cumulative else None,
      keepdims=True,
      sync_replicas=False,
    )
    normed = (grouped - mean) * jax.lax.rsqrt(variance + self.epsilon)
    return normed.reshape(inputs.shape)
