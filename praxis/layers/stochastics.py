# SPDX-License-Identifier: Apache-2.0
"""Dropout and stochastic depth."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from praxis import base_layer
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)


class Dropout(base_layer.BaseLayer):
  """Zeroes elements at random and scales the others by 1 / keep_prob.

  References: https://jmlr.org/papers/v15/srivastava14a.html
  """

  # The probability that an element is kept.
  keep_prob: float = 1.0
  # The shape of the mask, 1 for dimensions that share it; None: the inputs'.
  noise_shape: Sequence[int] | None = None
  # The dimensions that share the mask; an alternative to noise_shape.
  noise_shape_broadcast_dims: Sequence[int] | None = None
  # Whether to drop in eval, too.
  dropout_at_eval: bool = False
  # Whether the mask is generated with its last two dimensions transposed, a
  # cheaper layout of random bits for attention probabilities.
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
    keep = self._keep_mask(inputs.shape)
    return jnp.where(keep, inputs / self.keep_prob, jnp.zeros_like(inputs))

  def _keep_mask(self, shape: tuple[int, ...]) -> Bool[Array, '...']:
    noise_shape = list(self.noise_shape or shape)
    # From the last dimension on.
    pairs = zip(reversed(noise_shape), reversed(shape), strict=False)
    if len(noise_shape) > len(shape) or any(a not in (1, b) for a, b in pairs):
      raise ValueError(
        f'noise_shape of {type(self).__name__} {self.name!r} must broadcast to '
        f'the inputs {shape}, got {tuple(noise_shape)}'
      )
    for dim in self.noise_shape_broadcast_dims or ():
      if not -len(noise_shape) <= dim < len(noise_shape):
        raise ValueError(
          'noise_shape_broadcast_dims must be dimensions of the mask, whose '
          f'rank is {len(noise_shape)}, got {dim}'
        )
      noise_shape[dim] = 1
    if self.transpose_qk:
      noise_shape[-1], noise_shape[-2] = noise_shape[-2], noise_shape[-1]
    keep = jax.random.bernoulli(
      self.next_prng_key(), self.keep_prob, noise_shape
    )
    return jnp.swapaxes(keep, -1, -2) if self.transpose_qk else keep


class StochasticResidual(base_layer.BaseLayer):
  """Adds a residual branch, dropped per example in training.

  References: Deep Networks with Stochastic Depth,
  https://arxiv.org/abs/1603.09382
  """

  # The factor of the residual branch.
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
    self, inputs: Float[Array, ' B *rest'], residual: Float[Array, ' B *rest']
  ) -> Float[Array, ' B *rest']:
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
