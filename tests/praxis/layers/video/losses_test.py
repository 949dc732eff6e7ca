# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The losses of a video tokenizer against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers.video import losses
from tests.praxis.layers.running import build, jit, normal, run


def test_gradient_penalty():
  x = normal(3, 2, 4)
  logits, penalty = losses.r1_gradient_penalty(
    x, lambda x: jnp.sin(x).sum((1, 2)), grad_penalty_cost=4.0
  )
  np.testing.assert_allclose(logits, np.sin(x).sum((1, 2)), rtol=1e-5)
  want = 4.0 * np.mean(np.sum(np.cos(x) ** 2, axis=(1, 2)))
  np.testing.assert_allclose(penalty, want, rtol=1e-5)


@pytest.mark.parametrize('do_eval', [False, True])
def test_losses(do_eval):
  batch = {'video': normal(2, 3, 4)}
  predictions = {
    'reconstructed': normal(2, 3, 4, seed=2),
    'logits_real': normal(2, 1, seed=3),
    'logits_fake': normal(2, 1, seed=4),
    'r1_gradient_penalty': jnp.float32(0.5),
    'quantizer_loss': jnp.float32(0.25),
  }
  cfg = losses.VQGANLoss.config(polyak_decay=0.8, lecam_weight=0.3)
  layer, variables = build(cfg, predictions, batch)
  old = {k: float(v) for k, v in variables['non_trainable'].items()}
  got, updated = run(
    layer,
    variables,
    predictions,
    batch,
    do_eval=do_eval,
    mutable=[base_layer.NON_TRAINABLE],
  )
  real, fake = (
    np.asarray(predictions[f'logits_{k}'], np.float64) for k in ('real', 'fake')
  )
  new = {
    'ema_real_pred': 0.8 * old['ema_real_pred'] + 0.2 * real.mean(),
    'ema_fake_pred': 0.8 * old['ema_fake_pred'] + 0.2 * fake.mean(),
  }
  relu2 = lambda x: np.mean(np.maximum(x, 0) ** 2)
  softplus = lambda x: np.mean(np.log1p(np.exp(x)))
  difference = np.asarray(batch['video'] - predictions['reconstructed'])
  want = {
    'grad_penalty': 0.5,
    'lecam_loss': 0.3
    * (relu2(real - new['ema_fake_pred']) + relu2(new['ema_real_pred'] - fake)),
    'd_adversarial_loss': softplus(-real) + softplus(fake),
    'g_adversarial_loss': 0.1 * softplus(-fake),
    'reconstruction_loss': 5.0 * np.mean(difference**2),
    'perceptual_loss': 0.0,
    'quantizer_loss': 0.0 if do_eval else 0.25,
  }
  want['d_loss'] = sum(
    want[k] for k in ('grad_penalty', 'lecam_loss', 'd_adversarial_loss')
  )
  want['g_loss'] = sum(
    want[f'{k}_loss']
    for k in ('reconstruction', 'g_adversarial', 'perceptual', 'quantizer')
  )
  assert set(got) == set(want)
  for name, value in want.items():
    np.testing.assert_allclose(got[name], value, rtol=1e-4, err_msg=name)
  for name, value in new.items():
    np.testing.assert_allclose(
      updated['non_trainable'][name], value, rtol=1e-4, atol=1e-6
    )


def test_gradient_of_the_generator():
  x, fake = normal(2, 3), normal(2, 1, seed=4)
  rest = {
    'logits_real': fake,
    'r1_gradient_penalty': jnp.float32(0.0),
    'quantizer_loss': jnp.float32(0.0),
  }
  layer, variables = build(
    losses.VQGANLoss.config(),
    {'reconstructed': x, 'logits_fake': fake, **rest},
    {'video': x},
  )

  def loss(reconstructed, fake):
    made = {'reconstructed': reconstructed, 'logits_fake': fake, **rest}
    return layer.apply(variables, made, {'video': x}).g_loss

  by_video, by_logits = jit(jax.grad(loss, (0, 1)))(x + 0.5, fake)
  np.testing.assert_allclose(by_video, 5.0 * 2 * 0.5 / 6, rtol=1e-5)
  want = -0.1 / 2 / (1 + np.exp(np.asarray(fake)))
  np.testing.assert_allclose(by_logits, want, rtol=1e-4)
