# SPDX-License-Identifier: Apache-2.0
"""Layers that drop things at random while training."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer


class Dropout(base_layer.BaseLayer):
  """Zeroes elements at random and scales up the others; identity in eval."""

  # The probability that an element is kept.
  keep_prob: float = 1.0
  # The shape of the mask, with 1 where a dimension shares it.
  noise_shape: Sequence[int] | None = None
  # The dimensions that share a mask; an alternative to noise_shape.
  noise_shape_broadcast_dims: Sequence[int] | None = None
  # Whether eval drops too.
  dropout_at_eval: bool = False
  # Whether the mask is drawn with its last two dimensions exchanged, a layout
  # that random bits are cheaper in for attention probabilities.
  transpose_qk: bool | None = False

  def setup(self) -> None:
    if not 0.0 < self.keep_prob <= 1.0:
      raise ValueError(
        f'keep_prob must be in (0, 1], got {self.keep_prob}; it is the '
        'probability to keep, 1 - dropout_prob'
      )

  def __call__(self, inputs: Float[Array, '*shape']) -> Float[Array, '*shape']:
    if self.keep_prob == 1.0 or (self.do_eval and not self.dropout_at_eval):
      return inputs
    keep = self._draw(inputs.shape)
    return jnp.where(keep, inputs / self.keep_prob, jnp.zeros_like(inputs))

  def _draw(self, shape: tuple[int, ...]) -> Array:
    noise_shape = list(self.noise_shape or shape)
    for dim in self.noise_shape_broadcast_dims or ():
      if dim >= len(shape):
        raise ValueError(
          f'noise_shape_broadcast_dims must be below the rank {len(shape)} of '
          f'the input, got {dim}'
        )
      noise_shape[dim] = 1
    if self.transpose_qk:
      noise_shape[-1], noise_shape[-2] = noise_shape[-2], noise_shape[-1]
    keep = jax.random.bernoulli(
      self.next_prng_key(), self.keep_prob, noise_shape
    )
    return jnp.swapaxes(keep, -1, -2) if self.transpose_qk else keep


class StochasticResidual(base_layer.BaseLayer):
  """Adds a residual branch, in training for a random part of the batch only.

  References: Deep Networks with Stochastic Depth,
  https://arxiv.org/abs/1603.09382
  """

  # What the residual branch is multiplied with.
  residual_weight: float = 1.0
  # The probability that an example keeps its residual branch.
  survival_prob: float = 1.0

  def setup(self) -> None:
    if not 0.0 < self.survival_prob <= 1.0:
      raise ValueError(
        f'survival_prob must be in (0, 1], got {self.survival_prob}; leave the '
        'branch out to never use it'
      )

  def __call__(
    self, inputs: Float[Array, 'B *rest'], residual: Float[Array, 'B *rest']
  ) -> Float[Array, 'B *rest']:
    branch = residual
    if not self.do_eval and self.survival_prob != 1.0:
      shape = [inputs.shape[0]] + [1] * (inputs.ndim - 1)
      keep = jax.random.bernoulli(
        self.next_prng_key(), self.survival_prob, shape
      )
      branch = jnp.where(
        keep, branch / self.survival_prob, jnp.zeros_like(branch)
      )
    return inputs + branch * self.residual_weight
