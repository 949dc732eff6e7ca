# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The mean gradient of each replica is clipped."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pax.learners import stochastic_gradients
from tests.pax.learners.stochastic_gradients import regression


def _made(**fields):
  return stochastic_gradients.PercoreClippedDpSgdGradient.config(
    **fields
  ).Instantiate()


def _means():
  return regression.gradients_by_hand().reshape(4, 2, 4).mean(axis=1)


@pytest.mark.parametrize('normalize', [False, True])
@pytest.mark.parametrize('by_weight', [False, True])
def test_replicas_are_clipped(normalize, by_weight):
  bound = 1.0
  grads, dp_aux_info = regression.run_on_replicas(
    _made(
      l2_norm_clip=bound,
      normalize_gradients=normalize,
      use_loss_weight_scaling=by_weight,
    )
  )
  norms = np.linalg.norm(_means(), axis=1)
  assert 0 < (norms > bound).mean() < 1
  want = regression.clipped(_means(), bound).mean(axis=0)
  np.testing.assert_allclose(regression.flat(grads), want, rtol=1e-5)
  np.testing.assert_array_equal(dp_aux_info['frac_clipped'], norms > bound)
  np.testing.assert_allclose(
    dp_aux_info['per_core_grad_norm'], norms / 4, rtol=1e-5
  )


@pytest.mark.parametrize('normalize', [False, True])
def test_the_bound_can_be_the_smallest_norm(normalize):
  grads, dp_aux_info = regression.run_on_replicas(
    _made(adaptive_clipping_method='min', normalize_gradients=normalize)
  )
  smallest = np.linalg.norm(_means(), axis=1).min()
  want = regression.clipped(_means(), smallest).mean(axis=0)
  want = want / smallest if normalize else want
  np.testing.assert_allclose(regression.flat(grads), want, rtol=1e-5)
  assert dp_aux_info['frac_clipped'].sum() == 3


def test_noise():
  quiet, _ = regression.run_on_replicas(_made(l2_norm_clip=0.5))
  noisy = _made(l2_norm_clip=0.5, noise_multiplier=2.0)
  runs = [regression.run_on_replicas(noisy, seed=seed) for seed in range(40)]
  noise = [regression.flat(g) - regression.flat(quiet) for g, _ in runs]
  deviation = 2.0 * 0.5 / 4
  np.testing.assert_allclose(np.std(noise), deviation, rtol=0.2)
  np.testing.assert_allclose(runs[0][1]['noise_std'], deviation, rtol=1e-6)


def _loss_with_random_gradient(variables, others_and_inputs, key):
  """Draws the gradient as the mechanism draws its noise, from this key."""
  del others_and_inputs
  w = variables['params']['w']
  gradient = jax.random.normal(jax.random.split(key, 2)[1], w.shape)
  share = 1.0 / jax.lax.axis_size('batch')
  return share * (w @ gradient), stochastic_gradients.GradAuxInfo({}, share)


def test_noise_is_independent_of_the_models_random_numbers():
  gradients = [
    regression.run_on_replicas(
      _made(l2_norm_clip=100.0, noise_multiplier=multiplier),
      loss_fn=_loss_with_random_gradient,
    )[0]['params']['w']
    for multiplier in (0.0, 1.0)
  ]
  quiet, noise = gradients[0], gradients[1] - gradients[0]
  # Each of 4 replicas adds noise of deviation 100 / 4 / sqrt(4).
  same_numbers = 4 * quiet * 100.0 / 4 / 2
  assert not np.any(np.isclose(noise, same_numbers, rtol=1e-2))
