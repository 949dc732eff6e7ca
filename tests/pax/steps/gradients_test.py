# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The step takes its gradient from the learner's `stochastic_gradient`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import base_metrics, ghostnorm, partitioning
from pax.learners import stochastic_gradients
from praxis import base_layer, pax_fiddle
from praxis.layers import repeats
from tests.pax import tiny

_KEY = jax.random.key(1)


def _setup(devices=1, gradient=None, mesh=None):
  """Returns (partitioner, state); without a mesh several are replicas."""
  config = tiny.task([1, 1, 1] if devices == 1 else mesh)
  config.train.learner.stochastic_gradient = gradient
  made = partitioning.partition_task(
    config, tiny.spec(tiny.batch()), devices=jax.devices()[:devices]
  )
  return made, made.initialize(jax.random.key(0))


def _moved(made, state):
  """Returns (the gradient of the parameters, the step's output)."""
  before = [np.asarray(w) for w in tiny.weights(state)]
  batch = made.put_batch(tiny.batch())
  state, output = made.train_step()(state, batch, _KEY)
  after = [np.asarray(w) for w in tiny.weights(state)]
  pairs = zip(before, after, strict=True)
  return [(a - b) / 0.1 for a, b in pairs], output


@functools.cache
def _moved_on_replicas():
  return _moved(*_setup(4))


def _by_hand(params, bound):
  """Returns the mean of gradients of single examples, clipped."""
  batch = tiny.batch()

  def loss(params, x, y, weight):
    w1, b1, w2 = params
    predicted = (jax.nn.relu(x @ w1 + b1) @ w2)[0]
    return jnp.square(predicted - y) * weight / (weight + 1e-6)

  grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0))(
    params, batch.x, batch.y, batch.weights
  )
  norms = np.sqrt(sum(np.square(g).reshape(8, -1).sum(axis=1) for g in grads))
  scales = np.minimum(1.0, bound / np.maximum(norms, 1e-30))
  means = [np.tensordot(scales, g, 1) / 8 for g in grads]
  return means, np.mean(norms > bound)


def test_examples_are_clipped():
  bound = 2.0
  gradient = stochastic_gradients.DpSgdStochasticGradient.config(
    l2_norm_clip=bound
  )
  made, state = _setup(gradient=gradient)
  params = [np.asarray(w) for w in tiny.weights(state)]
  moved, output = _moved(made, state)
  want, fraction = _by_hand(params, bound)
  assert 0 < fraction < 1
  for got, wanted in zip(moved, want, strict=True):
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)
  tensors = output.summary_tensors
  np.testing.assert_allclose(
    tensors['dp_metrics/frac_clipped_scalar'], fraction, rtol=1e-5
  )
  assert float(tensors['dp_metrics/noise_std_scalar']) == 0.0
  assert np.isfinite(output.loss)


def test_examples_are_clipped_on_a_mesh_too():
  gradient = stochastic_gradients.DpSgdStochasticGradient.config(
    l2_norm_clip=2.0, inner_batch_size=4
  )
  one, _ = _moved(*_setup(gradient=gradient))
  eight, _ = _moved(*_setup(8, gradient, [1, 4, 2]))
  for a, b in zip(eight, one, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_replicas_are_clipped():
  gradient = stochastic_gradients.PercoreClippedDpSgdGradient.config(
    l2_norm_clip=1e-3
  )
  made, state = _setup(4, gradient)
  moved, output = _moved(made, state)
  norm = np.sqrt(sum(np.square(g).sum() for g in moved))
  assert 0 < norm <= 1e-3 * 1.001
  tensors = output.summary_tensors
  assert float(tensors['dp_metrics/frac_clipped_scalar']) == 1.0
  assert float(tensors['dp_metrics/mean_per_core_grad_norm_scalar']) > 0.0


class _Factor(base_layer.BaseLayer):
  """A factor of 1."""

  def setup(self):
    one = base_layer.WeightInit.Constant(1.0)
    self.create_variable('w', base_layer.WeightHParams([1], init=one))

  def __call__(self, inputs):
    return inputs * self.theta.w


class _StackedModel(tiny.TinyModel):
  """Two repeated factors, then a linear layer."""

  def setup(self):
    factor, linear = map(
      pax_fiddle.Config, (_Factor, ghostnorm.LinearGhostNorm)
    )
    repeat = pax_fiddle.Config(repeats.Repeat, sub_tpl=factor, x_times=2)
    self.create_child('factors', repeat)
    self.create_child('last', linear.set(input_dims=tiny.DIM, output_dims=1))

  def compute_predictions(self, input_batch):
    return self.last(self.factors(input_batch.x))[:, 0]


def test_ghost_clipping_needs_layers_that_are_not_repeated():
  config = tiny.task([1, 1, 1])
  pax_fiddle.update_callable(config.model, _StackedModel)
  config.train.learner.stochastic_gradient = (
    stochastic_gradients.GhostClippingDpSgdStochasticGradient.config(
      l2_norm_clip=2.0
    )
  )
  with pytest.raises(ValueError, match=r'factors/.*w, stacked \[2\]; set'):
    _step(config)
  # Frozen variables have no gradient.
  config.train.learner.bprop_variable_exclusion = '.*/factors/.*'
  assert np.isfinite(_step(config).loss)


def _step(config):
  batch = tiny.batch()
  made = partitioning.partition_task(
    config, tiny.spec(batch), devices=jax.devices()[:1]
  )
  state = made.initialize(jax.random.key(0))
  return made.train_step()(state, made.put_batch(batch), _KEY)[1]


def test_plain_differentiation_is_the_default():
  default, _ = _moved_on_replicas()
  gradient = stochastic_gradients.StandardGradient.config()
  moved, _ = _moved(*_setup(4, gradient))
  for a, b in zip(moved, default, strict=True):
    np.testing.assert_array_equal(a, b)


def test_several_losses_add_up_over_replicas():
  losses = base_metrics.MultiLossAggregator.config(
    loss_keys=['total_loss', 'total_loss']
  )
  single, one = _moved_on_replicas()
  config = tiny.task(None)
  config.train.learner.loss_name = None
  config.loss_aggregator = losses
  made = partitioning.partition_task(
    config, tiny.spec(tiny.batch()), devices=jax.devices()[:4]
  )
  double, two = _moved(made, made.initialize(jax.random.key(0)))
  np.testing.assert_allclose(two.loss, 2 * one.loss, rtol=1e-6)
  for a, b in zip(double, single, strict=True):
    np.testing.assert_allclose(a, 2 * b, rtol=1e-4, atol=1e-6)
