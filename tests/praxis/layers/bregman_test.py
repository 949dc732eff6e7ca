# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""Bregman PCA against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import bregman
from tests.praxis.layers import running

_SLOPE = 0.2
_ACTIVATIONS = {
  'IDENTITY': (lambda x: x, lambda y: y),
  'LEAKY_RELU': (
    lambda x: np.where(x > 0, x, _SLOPE * x),
    lambda y: np.where(y > 0, y, y / _SLOPE),
  ),
  'SOFTMAX': (
    lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    lambda y: np.log(y) - np.log(y).mean(-1, keepdims=True),
  ),
}


def _config(activation='IDENTITY', **kwargs):
  return bregman.BregmanPCA.config(
    num_components=2,
    input_dims=[4],
    activation_type=bregman.ActivationType(activation),
    negative_slope=_SLOPE,
    coefficients_steps=3,
    components_lr=0.1,
    start_step=1,
    end_step=5,
  ).set(**kwargs)


def _inputs(activation):
  x = np.asarray(running.normal(3, 4), np.float64)
  return _ACTIVATIONS['SOFTMAX'][0](x) if activation == 'SOFTMAX' else x


def _unit(gradient):
  return gradient / np.linalg.norm(gradient) * gradient.size**0.5


def _by_hand(activation, state, x, mask):
  """One training step, the gradients worked out: act(x) - label before it."""
  act, invert = _ACTIVATIONS[activation]
  step, components = state['step'], state['components']
  updates = 1 <= step < 5
  rate = (1 - (step - 1) / 4) * updates
  mean = state['mean']
  if updates:
    mean = 0.99 * mean + 0.01 * invert(x.mean(0, keepdims=True))
  c, momentum = np.zeros((len(x), 2)), np.zeros((len(x), 2))
  for i in range(3):
    error = (act(c @ components + mean) - x) / len(x)
    momentum = 0.9 * momentum + 0.1 * _unit(error @ components.T)
    c = c - (1 - i / 3) * 0.01 * momentum
  counted = c * mask
  error = (act(counted @ components + mean) - x) / len(x)
  speed = 0.9 * state['components_momentum']
  if updates:
    speed = speed + 0.1 * _unit(counted.T @ error)
  return c, {
    'step': step + 1,
    'mean': mean,
    'components': components - rate * 0.1 * speed,
    'components_momentum': speed,
  }


@pytest.mark.parametrize('activation', _ACTIVATIONS)
def test_training_steps_equal_numpy(activation):
  x = _inputs(activation)
  inputs = jnp.asarray(x, jnp.float32)
  mask = np.array([[1.0], [0.0], [1.0]])
  config = _config(activation, constant_lr_schedule=False)
  layer, variables = running.build(config, inputs)
  state = {
    name: np.asarray(value, np.float64)
    for name, value in variables['non_trainable'].items()
  }
  state['step'] = np.float64(0)
  got = {k: jnp.asarray(v, jnp.float32) for k, v in state.items()}

  @running.jit
  def train(state):
    with base_layer.JaxContext.new_context():
      return layer.apply(
        {'non_trainable': state},
        inputs,
        jnp.asarray(mask),
        mutable=[base_layer.NON_TRAINABLE],
      )

  # Step 0 is before start_step: nothing but the count changes, and momentum.
  for _ in range(3):
    (passed, coefficients), new = train(got)
    want, state = _by_hand(activation, state, x, mask)
    got = new[base_layer.NON_TRAINABLE]
    np.testing.assert_array_equal(passed, inputs)
    np.testing.assert_allclose(coefficients, want, atol=1e-5)
    for name, value in state.items():
      np.testing.assert_allclose(got[name], value, atol=1e-5, err_msg=name)


def test_eval_changes_nothing_and_no_gradient_passes():
  inputs = running.normal(3, 4)
  layer, variables = running.build(_config(), inputs)
  _, new = running.run(
    layer, variables, inputs, do_eval=True, mutable=[base_layer.NON_TRAINABLE]
  )
  jax.tree.map(np.testing.assert_array_equal, new, variables)

  @running.jit
  @jax.grad
  def gradient(x):
    with base_layer.JaxContext.new_context():
      passed, coefficients = layer.apply(variables, x)
    return jnp.sum(passed) + jnp.sum(coefficients)

  np.testing.assert_array_equal(gradient(inputs), 1.0)


@pytest.mark.parametrize('activation', _ACTIVATIONS)
def test_loss_is_a_divergence_with_its_gradient(activation):
  act, _ = _ACTIVATIONS[activation]
  mean = running.normal(1, 4, seed=1)
  components = running.normal(2, 4, seed=2)
  c = running.normal(3, 2, seed=3)
  x = _inputs(activation).astype(np.float32)
  layer, variables = running.build(_config(activation), jnp.asarray(x))
  bound = layer.bind(
    {
      **variables,
      'non_trainable': {
        **variables['non_trainable'],
        'mean': mean,
        'components': components,
      },
    }
  )
  exact = bound.reconstruct(c)
  np.testing.assert_allclose(exact, act(c @ components + mean), atol=1e-5)
  loss = bound.bregman_loss_fn(c, components, mean, exact)
  np.testing.assert_allclose(loss, 0, atol=1e-5)
  assert bound.bregman_loss_fn(c, components, mean, jnp.asarray(x)) > 0
  error = (act(c @ components + mean) - x) / 3
  args = tuple(jnp.asarray(a) for a in (c, components, mean, x))
  np.testing.assert_allclose(
    bound.coefficients_grad_fn(*args), error @ components.T, atol=1e-5
  )
  np.testing.assert_allclose(
    bound.components_grad_fn(*args), c.T @ error, atol=1e-5
  )


def test_bfloat16_inputs():
  inputs = running.normal(3, 4).astype(jnp.bfloat16)
  layer, variables = running.build(_config(fprop_dtype=jnp.bfloat16), inputs)
  passed, coefficients = running.run(layer, variables, inputs)
  assert passed.dtype == coefficients.dtype == jnp.bfloat16


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'num_components': 0}, 'num_components > 0'),
    ({'input_dims': 0}, 'input_dims'),
    ({'end_step': 1}, 'end_step > start_step=1'),
    (
      {
        'activation_type': bregman.ActivationType.LEAKY_RELU,
        'negative_slope': 0.0,
      },
      'negative_slope > 0',
    ),
  ],
)
def test_bad_settings(kwargs, message):
  with pytest.raises(ValueError, match=message):
    running.build(_config(**kwargs), running.normal(3, 4))
