# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The bi-tempered loss against the paper's formulas in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import losses
from tests.praxis.layers.running import build, jit, normal, run

_TEMPERATURES = [(1.0, 1.0), (0.8, 1.2), (0.2, 4.0), (0.7, 1.0), (0.9, 0.5)]


def _log(x, t):
  return np.log(x) if t == 1 else (x ** (1 - t) - 1) / (1 - t)


def _exp(x, t):
  if t == 1:
    return np.exp(x)
  return np.maximum(1 + (1 - t) * x, 0) ** (1 / (1 - t))


def _softmax(x, t):
  """Finds the normalizer of each row by bisection."""
  low = x.max(-1, keepdims=True)
  high = low - _log(1 / x.shape[-1], t)
  for _ in range(200):
    middle = (low + high) / 2
    over = _exp(x - middle, t).sum(-1, keepdims=True) > 1
    low, high = np.where(over, middle, low), np.where(over, high, middle)
  return _exp(x - high, t)


def _loss(x, labels, t1, t2):
  p = _softmax(np.asarray(x, np.float64), t2)
  total = np.zeros(x.shape[:-1])
  for at in np.ndindex(x.shape):
    y = labels[at]
    if y > 0:
      total[at[:-1]] += y * (_log(y, t1) - _log(p[at], t1))
    total[at[:-1]] -= (y ** (2 - t1) - p[at] ** (2 - t1)) / (2 - t1)
  return total


@pytest.fixture(scope='module')
def compiled():
  """Loss and gradient of any temperatures, in one compilation."""

  def both(x, labels, t1, t2):
    loss = lambda x: losses.bi_tempered_logistic_loss(x, labels, t1, t2)
    values, pullback = jax.vjp(loss, x)
    return values, pullback(jnp.asarray([1.0, 2.0, 3.0]))[0]

  return jit(both)


@pytest.mark.parametrize('t1, t2', _TEMPERATURES)
def test_loss_and_gradient(compiled, t1, t2):
  x = normal(3, 5)
  labels = np.eye(5)[[0, 2, 4]] * 0.9 + 0.02
  got, grad = compiled(x, jnp.asarray(labels, jnp.float32), t1, t2)
  np.testing.assert_allclose(
    got, _loss(x, labels, t1, t2), rtol=1e-4, atol=1e-5
  )
  x, weights = np.asarray(x, np.float64), np.asarray([1.0, 2.0, 3.0])
  want = np.zeros(x.shape)
  for at in np.ndindex(x.shape):
    step = np.zeros(x.shape)
    step[at] = 1e-6
    change = _loss(x + step, labels, t1, t2) - _loss(x - step, labels, t1, t2)
    want[at] = np.sum(change * weights) / 2e-6
  np.testing.assert_allclose(grad, want, rtol=1e-3, atol=1e-4)


def test_temperatures_of_1_are_the_cross_entropy(compiled):
  x, labels = 20.0 * normal(3, 5), jnp.eye(5)[jnp.asarray([0, 2, 4])]
  loss, grad = compiled(x, labels, 1.0, 1.0)
  shifted = np.asarray(x, np.float64) - np.max(x, -1, keepdims=True)
  probs = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
  want = -np.log(probs[[0, 1, 2], [0, 2, 4]])
  np.testing.assert_allclose(loss, want, rtol=1e-5, atol=1e-5)
  want = (probs - labels) * np.asarray([[1.0], [2.0], [3.0]])
  np.testing.assert_allclose(grad, want, atol=1e-5)


@pytest.mark.parametrize('t1', [1.0, 0.99])
def test_sure_errors_have_a_finite_loss(compiled, t1):
  # Probabilities of exp(-200) and less are 0 in float32.
  x = jnp.zeros([3, 5]).at[:, 0].set(jnp.asarray([200.0, 500.0, 2000.0]))
  labels = np.eye(5)[[1, 2, 3]]
  loss, grad = compiled(x, jnp.asarray(labels, jnp.float32), t1, 1.0)
  log_probs = -np.asarray(x)[:, 0].astype(np.float64)
  tempered = np.expm1((1 - t1) * log_probs) / (1 - t1) if t1 < 1 else log_probs
  # The sums of probabilities and of labels cancel.
  np.testing.assert_allclose(loss, -tempered, rtol=1e-5)
  pull = np.exp((1 - t1) * log_probs) * [1.0, 2.0, 3.0]
  want = np.stack([pull, -pull], axis=-1)
  rows = np.arange(3)
  np.testing.assert_allclose(grad[:, 0], want[:, 0], rtol=1e-4, atol=1e-7)
  np.testing.assert_allclose(grad[rows, rows + 1], want[:, 1], rtol=1e-4)


def test_probabilities_of_many_classes_sum_to_1():
  x = jnp.zeros([1, 20_000]).at[0, 3].set(8.0)
  softmax = jit(losses.tempered_softmax)
  for t in (0.5, 0.9999, 1.0, 1.0001, 1.5, 4.0):
    np.testing.assert_allclose(jnp.sum(softmax(x, t)), 1.0, atol=1e-5)


def test_outliers_lose_at_most_a_bound(compiled):
  x = jnp.zeros([3, 5]).at[:, 0].set(jnp.asarray([1e4, 1e6, 1e8]))
  loss, _ = compiled(x, jnp.eye(5)[jnp.asarray([1, 2, 3])], 0.5, 1.0)
  # -log_t1(0) - 1 / (2 - t1) + 1 / (2 - t1).
  np.testing.assert_allclose(loss, 2.0, rtol=1e-4)


def test_bfloat16_is_computed_in_float32(compiled):
  x, labels = normal(3, 5).astype(jnp.bfloat16), jnp.eye(5)[:3]
  got, grad = compiled(x, labels, 0.8, 1.2)
  assert got.dtype == jnp.float32 and grad.dtype == jnp.bfloat16
  same, _ = compiled(x.astype(jnp.float32), labels, 0.8, 1.2)
  np.testing.assert_allclose(got, same, rtol=1e-6)


def test_label_smoothing():
  x, labels = normal(3, 5), np.eye(5)[:3]
  loss = functools.partial(
    losses.bi_tempered_logistic_loss, label_smoothing=0.2
  )
  got = jit(loss)(x, jnp.asarray(labels, jnp.float32), 0.8, 1.2)
  # A fifth of a label goes to the four other classes.
  smooth = np.where(labels == 1, 0.8, 0.05)
  np.testing.assert_allclose(got, _loss(x, smooth, 0.8, 1.2), rtol=1e-4)


def test_layer_changes_temperatures_step_by_step():
  x, labels = normal(3, 5), jnp.eye(5)[:3]
  cfg = losses.BiTemperedLoss.config(t1=0.6, t2=1.4, start_step=2, end_step=4)
  layer, variables = build(cfg, x, labels)
  mutable = [base_layer.NON_TRAINABLE]
  train = jit(lambda v: layer.apply(v, x, labels, mutable=mutable))
  for step, (t1, t2) in {
    0: (1.0, 1.0),
    2: (1.0, 1.0),
    3: (0.8, 1.2),
    4: (0.6, 1.4),
    9: (0.6, 1.4),
  }.items():
    variables['non_trainable']['count'] = jnp.asarray(float(step))
    got, updated = train(variables)
    np.testing.assert_allclose(got, _loss(x, labels, t1, t2), rtol=1e-3)
    assert updated['non_trainable']['count'] == step + 1
  variables['non_trainable']['count'] = jnp.asarray(0.0)
  last = run(layer, variables, x, labels, do_eval=True)
  np.testing.assert_allclose(last, _loss(x, labels, 0.6, 1.4), rtol=1e-3)


def test_schedule_without_end_is_over_from_the_first_step():
  layer = losses.BiTemperedLoss.config(t1=0.5, name='loss').Instantiate()
  assert layer.temperature_schedule(0) == 0.0
  with pytest.raises(ValueError, match='end_step must not be before'):
    build(
      losses.BiTemperedLoss.config(start_step=3), normal(1, 2), normal(1, 2)
    )
