# SPDX-License-Identifier: Apache-2.0
"""Batch normalization."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.normalizations.base import BaseNormalization
from praxis.layers.normalizations.moments import compute_moments

_EPSILON = 1e-3


class BatchNorm(BaseNormalization):
  """Normalizes each channel by its moments over the batch of all replicas.

  Eval uses moving averages of the moments.

  References: https://arxiv.org/abs/1502.03167
  """

  # Decay of the moving averages per step.
  decay: float = 0.999
  # Uses the moving averages in training too; then scale and bias are not used,
  # in eval neither.
  use_moving_avg_in_training: bool = False
  # Sets the output to 0 at padding.
  set_padded_output_to_zero: bool = True
  # Always normalizes as in eval, without updates.
  force_eval_mode: bool = False
  # Initial value of `gamma`; the scale is 1 + gamma.
  gamma_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )

  def setup(self) -> None:
    super().setup()
    if not 0.0 <= self.decay <= 1.0:
      raise ValueError(
        f'decay of {type(self).__name__} {self.name!r} must be in [0, 1], got '
        f'{self.decay}'
      )
    # Created even if unused: the variable tree does not depend on the option.
    self._create_vector('beta', 0.0, regularized=True)
    self.create_variable('gamma', self._hparams_of(self.gamma_init))
    # A moving average in bfloat16 would stop changing.
    flags = [
      base_layer.WeightHParamsCollection.REQUIRES_MEAN_SYNC,
      base_layer.WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION,
    ]
    for name, value in (('moving_mean', 0.0), ('moving_variance', 1.0)):
      hparams = self._hparams_of(WeightInit.Constant(value), flags)
      self.create_variable(name, hparams, trainable=False)

  def compute_and_update_moments(
    self, inputs: Float[Array, '*B D'], paddings: Num[Array, '*B 1']
  ) -> tuple[
    Float[Array, ' D'],
    Float[Array, ' D'],
    Float[Array, ' D'],
    Float[Array, ' D'],
  ]:
    """Returns mean, variance, beta and 1 + gamma to normalize with.

    Training updates the moving averages of mean and variance.
    """
    is_train = not (self.do_eval or self.force_eval_mode)
    mean = variance = None
    if is_train:
      mean, variance = compute_moments(
        inputs,
        paddings,
        range(inputs.ndim - 1),
        sync_replicas=self.jax_context.sync_replicas,
      )
      self._update_average('moving_mean', mean)
      self._update_average('moving_variance', variance)
      self.add_summary('mean', mean, verbosity=4)
      self.add_summary('variance', variance, verbosity=4)
    averages = self.get_var('moving_mean'), self.get_var('moving_variance')
    self.add_summary('moving_mean', averages[0], verbosity=4)
    self.add_summary('moving_variance', averages[1], verbosity=4)
    if mean is None or variance is None or self.use_moving_avg_in_training:
      mean, variance = averages
    return mean, variance, *self._offset_and_scale()

  def _update_average(self, name: str, value: Float[Array, ' D']) -> None:
    average = self.get_var(name) * self.decay + value * (1.0 - self.decay)
    self.update_var(name, average)

  def _offset_and_scale(self) -> tuple[Float[Array, ' D'], Float[Array, ' D']]:
    beta, scale = self.theta.beta, 1.0 + self.theta.gamma
    if self.use_moving_avg_in_training:
      return jnp.zeros_like(beta), jnp.ones_like(scale)
    return beta, scale

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*lead'] | None = None,
  ) -> Float[Array, '*B D']:
    """Returns the normalized inputs.

    Args:
      inputs: any rank, channels last.
      paddings: 1 at padding; leading dimensions of the inputs.
    """
    inputs, paddings = self._cast_to_fprop_dtype((inputs, paddings))
    paddings = _spread(paddings, inputs)[..., None]
    mean, variance, beta, scale = self.compute_and_update_moments(
      inputs, paddings
    )
    normed = (inputs - mean) * jax.lax.rsqrt(variance + _EPSILON)
    normed = normed * scale + beta
    if self.set_padded_output_to_zero:
      normed *= 1.0 - paddings
    return normed.astype(inputs.dtype)

  def _hparams_of(
    self, init: WeightInit, collections: list[str] | None = None
  ) -> WeightHParams:
    return WeightHParams(
      shape=[self.dim],
      init=init,
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      collections=collections,
    )


def _spread(paddings: Array | None, inputs: Array) -> Array:
  """Returns paddings for all dimensions of `inputs` but the last."""
  shape = inputs.shape[:-1]
  if paddings is None:
    return jnp.zeros(shape, inputs.dtype)
  if paddings.shape != shape[: paddings.ndim]:
    raise ValueError(
      f'paddings must have the leading dimensions of inputs {inputs.shape}, '
      f'got {paddings.shape}'
    )
  aligned = paddings.reshape(
    paddings.shape + (1,) * (len(shape) - paddings.ndim)
  )
  return jnp.broadcast_to(aligned, shape)
