# SPDX-License-Identifier: Apache-2.0
"""Adversarial losses of a video tokenizer (VQGAN)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.base_layer import (
  WeightHParams,
  WeightHParamsCollection,
  WeightInit,
)
from praxis.nested_map import NestedMap

__getattr__ = module_getattr(__name__)

# The terms of each sum of losses, in the order of addition.
_TOTALS = {
  'd_loss': ('d_adversarial_loss', 'grad_penalty', 'lecam_loss'),
  'g_loss': (
    'reconstruction_loss',
    'g_adversarial_loss',
    'perceptual_loss',
    'quantizer_loss',
  ),
}


def r1_gradient_penalty(
  inputs: Float[Array, ' B *rest'],
  logits_fn: Callable[[Array], Array],
  grad_penalty_cost: float = 10.0,
) -> tuple[Float[Array, '...'], Float[Array, '']]:
  """Returns the logits of real inputs, and the R1 gradient penalty.

  References: Which Training Methods for GANs do actually Converge?,
  https://arxiv.org/abs/1801.04406

  Args:
    inputs: real inputs.
    logits_fn: the discriminator.
    grad_penalty_cost: the factor of the mean squared gradient norm.
  """
  logits, pullback = jax.vjp(logits_fn, inputs)
  (grad,) = pullback(jnp.ones_like(logits))
  squares = jnp.square(grad.astype(jnp.float32)).reshape(len(inputs), -1)
  return logits, jnp.mean(jnp.sum(squares, axis=-1)) * grad_penalty_cost


class VQGANLoss(base_layer.BaseLayer):
  """The losses of generator and discriminator.

  References: VQGAN, https://arxiv.org/abs/2012.09841
  """

  # The weights of the losses.
  g_adversarial_loss_weight: float = 0.1
  reconstruction_loss_weight: float = 5.0
  lecam_weight: float = 0.001
  # The decay of the moving averages of predictions.
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
    """Returns the LeCam regularizer of the discriminator's predictions.

    References: Regularizing Generative Adversarial Networks under Limited Data,
    https://arxiv.org/abs/2104.03310
    """
    squared_relu = lambda x: jnp.mean(jnp.square(jax.nn.relu(x)))
    real_loss = squared_relu(real_pred - self.get_var('ema_fake_pred'))
    fake_loss = squared_relu(self.get_var('ema_real_pred') - fake_pred)
    return real_loss + fake_loss

  def __call__(
    self, predictions: Mapping[str, Any], input_batch: Mapping[str, Any]
  ) -> NestedMap:
    """Returns the losses by name, and their sums d_loss and g_loss.

    Args:
      predictions: reconstructed, logits_real, logits_fake, r1_gradient_penalty,
        and in training quantizer_loss.
      input_batch: video.
    """
    real, fake = predictions['logits_real'], predictions['logits_fake']
    decay = self.polyak_decay
    for name, logits in (('ema_real_pred', real), ('ema_fake_pred', fake)):
      average, value = self.get_var(name), jnp.mean(logits).astype(jnp.float32)
      self.update_var(name, average * decay + value * (1.0 - decay))
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
    for total, terms in _TOTALS.items():
      losses[total] = sum(losses[term] for term in terms)
    return losses
