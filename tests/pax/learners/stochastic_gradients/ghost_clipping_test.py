# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Ghost clipping equals per-example clipping."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import ghostnorm
from pax.learners import stochastic_gradients
from praxis import pax_fiddle
from praxis.layers import linears

Config = pax_fiddle.Config


def _model():
  feed_forward = Config(
    linears.FeedForward, name='ff', input_dims=3, output_dims=4
  )
  return ghostnorm.generate_wrapped_template(feed_forward).Instantiate()


def _problem():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(6, 2, 3)) * np.geomspace(0.1, 3.0, 6)[:, None, None]
  model = _model()
  x = jnp.asarray(x, jnp.float32)
  params = model.init(jax.random.key(0), x)['params']

  def loss_fn(variables, others_and_inputs, key):
    del key
    outputs = model.apply(variables, others_and_inputs[1]['x'])
    return jnp.mean(outputs**2), stochastic_gradients.GradAuxInfo(
      {'mean': jnp.mean(outputs)}
    )

  return loss_fn, {'params': params}, {'x': x}


@pytest.mark.parametrize('normalize', [False, True])
def test_same_as_one_example_at_a_time(normalize):
  loss_fn, variables, inputs = _problem()
  made = []
  for cls in (
    stochastic_gradients.DpSgdStochasticGradient,
    stochastic_gradients.GhostClippingDpSgdStochasticGradient,
  ):
    gradient = cls.config(
      l2_norm_clip=0.3, normalize_gradients=normalize
    ).Instantiate()
    run = jax.jit(
      lambda v, x, key, g=gradient: g.grad_fn(loss_fn, v, ({}, x), key)
    )
    made.append(run(variables, inputs, jax.random.key(0)))
  ((want_loss, want_aux), want), ((loss, aux), got) = made
  np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    got,
    want,
  )
  fraction = float(want_aux.dp_aux_info['frac_clipped'])
  assert 0 < fraction < 1
  np.testing.assert_allclose(aux.dp_aux_info['frac_clipped'], fraction)


def test_noise_is_added():
  loss_fn, variables, inputs = _problem()
  quiet, noisy = (
    stochastic_gradients.GhostClippingDpSgdStochasticGradient.config(
      l2_norm_clip=0.3, noise_multiplier=multiplier
    ).Instantiate()
    for multiplier in (0.0, 5.0)
  )
  deviation = 5.0 * 0.3 / 6
  _, want = quiet.grad_fn(loss_fn, variables, ({}, inputs), jax.random.key(0))
  run = jax.jit(
    lambda key: noisy.grad_fn(loss_fn, variables, ({}, inputs), key)
  )
  noise = []
  for seed in range(30):
    (_, aux), got = run(jax.random.key(seed))
    noise += [
      np.ravel(a - b)
      for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    ]
  np.testing.assert_allclose(np.std(np.concatenate(noise)), deviation, rtol=0.2)
  np.testing.assert_allclose(aux.dp_aux_info['noise_std'], deviation, rtol=1e-6)
