# SPDX-License-Identifier: Apache-2.0
"""Losses of a tokenizer that is trained against a discriminator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.base_layer import (
  WeightHParams,
  WeightHParamsCollection,
  WeightInit,
)
from praxis.nested_map import NestedMap


def r1_gradient_penalty(
  inputs: Float[Array, 'B *rest'],
  logits_fn: Callable[[Array], Array],
  grad_penalty_cost: float = 10.0,
) -> tuple[Float[Array, '...'], Float[Array, '']]:
  """Returns the logits of real inputs and how steep they are, squared.

  References: https://arxiv.org/abs/1801.04406

  Args:
    inputs: the real ones.
    logits_fn: the discriminator.
    grad_penalty_cost: what the mean squared norm is multiplied by.
  """
  logits, pullback = jax.vjp(logits_fn, inputs)
  (grad,) = pullback(jnp.ones_like(logits))
  squares = jnp.square(grad.astype(jnp.float32)).reshape(len(inputs), -1)
  return logits, jnp.mean(jnp.sum(squares, axis=-1)) * grad_penalty_cost


class VQGANLoss(base_layer.BaseLayer):
  """What generator and discriminator of videos are to minimise."""

  # The weights of the losses.
  g_adversarial_loss_weight: float = 0.1
  reconstruction_loss_weight: float = 5.0
  lecam_weight: float = 0.001
  # How much of the averages of the predictions a step keeps.
  polyak_decay: float = 0.999

  def setup(self) -> None:
    average = WeightHParams(
      shape=[],
      init=WeightInit.Constant(0.0),
      dtype=jnp.float32,
      collections=[WeightHParamsCollection.REQUIRES_MEAN_SYNC],
    )
    self.create_variable('ema_real_pred', average, trainable=False)
    self.create_variable('ema_fake_pred', average, trainable=False)

  def lecam_loss(
    self, real_pred: Float[Array, '*B'], fake_pred: Float[Array, '*B']
  ) -> Float[Array, '']:
    """Returns how far predictions are beyond the average of the others.

    References: https://arxiv.org/abs/2104.03310
    """
    beyond = lambda x: jnp.mean(jnp.square(jax.nn.relu(x)))
    above = beyond(real_pred - self.get_var('ema_fake_pred'))
    return above + beyond(self.get_var('ema_real_pred') - fake_pred)

  def __call__(
    self, predictions: Mapping[str, Any], input_batch: Mapping[str, Any]
  ) -> NestedMap:
    """Returns the losses by name; d_loss and g_loss are the sums.

    Args:
      predictions: reconstructed, logits_real, logits_fake, r1_gradient_penalty,
        and in training quantizer_loss.
      input_batch: video.
    """
    real, fake = predictions['logits_real'], predictions['logits_fake']
    for name, logits in (('ema_real_pred', real), ('ema_fake_pred', fake)):
      old, new = self.get_var(name), jnp.mean(logits).astype(jnp.float32)
      kept = self.polyak_decay
      self.update_var(name, old * kept + new * (1.0 - kept))
    softplus = lambda x: jnp.mean(jax.nn.softplus(x))
    video, reconstructed = input_batch['video'], predictions['reconstructed']
    difference = (video - reconstructed).astype(jnp.float32)
    losses = NestedMap(
      grad_penalty=predictions['r1_gradient_penalty'],
      lecam_loss=self.lecam_loss(real, fake) * self.lecam_weight,
      d_adversarial_loss=softplus(-real) + softplus(fake),
      g_adversarial_loss=softplus(-fake) * self.g_adversarial_loss_weight,
      reconstruction_loss=(
        jnp.mean(jnp.square(difference)) * self.reconstruction_loss_weight
      ),
      perceptual_loss=jnp.zeros([], jnp.float32),
      quantizer_loss=jnp.zeros([], jnp.float32),
    )
    if not self.do_eval:
      losses.quantizer_loss = predictions['quantizer_loss']
    losses.d_loss = (
      losses.d_adversarial_loss + losses.grad_penalty + losses.lecam_loss
    )
    losses.g_loss = (
      losses.reconstruction_loss
      + losses.g_adversarial_loss
      + losses.perceptual_loss
      + losses.quantizer_loss
    )
    return losses
