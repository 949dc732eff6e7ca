# SPDX-License-Identifier: Apache-2.0
"""The bi-tempered logistic loss, https://arxiv.org/abs/1906.03361."""

from __future__ import annotations

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

__getattr__ = module_getattr(__name__)

# The bound of Newton iterations, and their tolerance on the sum of
# probabilities.
_MAX_ITERATIONS = 64
_TOLERANCE = 1e-6
Scalar = Float[Array, ''] | float | int


class BiTemperedLoss(base_layer.BaseLayer):
  """A generalized cross entropy that is robust to outliers and label noise.

  The temperatures change linearly from (1, 1), the cross entropy, to (t1, t2)
  from training step start_step to end_step.

  References: Robust Bi-Tempered Logistic Loss Based on Bregman Divergences,
  https://arxiv.org/abs/1906.03361
  """

  # The temperature of the logarithm; below 1 the loss is bounded.
  t1: float = 1.0
  # The temperature of the softmax; above 1 its tail is heavy.
  t2: float = 1.0
  # The probability mass of labels that is spread over the other classes.
  label_smoothing: float = 0.0
  # The steps of the schedule; end_step 0: always (t1, t2).
  start_step: int = 0
  end_step: int = 0

  def setup(self) -> None:
    if self.end_step < self.start_step:
      raise ValueError(
        f'end_step must not be before start_step {self.start_step}, got '
        f'{self.end_step}'
      )
    count = WeightHParams(
      shape=[],
      init=WeightInit.Constant(0.0),
      dtype=jnp.float32,
      collections=[WeightHParamsCollection.REQUIRES_MEAN_SYNC],
    )
    self.create_variable('count', count, trainable=False)

  def temperature_schedule(self, count: Scalar) -> Float[Array, '']:
    """Returns the weight of the temperatures (1, 1) at step `count`."""
    if self.end_step == 0:
      return jnp.zeros([], jnp.float32)
    elapsed = jnp.asarray(count, jnp.float32) - self.start_step
    num_steps = max(self.end_step - self.start_step, 1)
    return jnp.clip(1.0 - elapsed / num_steps, 0.0, 1.0)

  def __call__(
    self, logits: Float[Array, '*B C'], labels: Float[Array, '*B C']
  ) -> Float[Array, '*B']:
    """Returns the loss of each example; labels are probabilities."""
    initial_weight: Array | float = 0.0
    if not self.do_eval:
      count = self.get_var('count')
      self.update_var('count', count + 1.0)
      initial_weight = self.temperature_schedule(count)
    return bi_tempered_logistic_loss(
      logits,
      labels,
      initial_weight + self.t1 * (1.0 - initial_weight),
      initial_weight + self.t2 * (1.0 - initial_weight),
      label_smoothing=self.label_smoothing,
    )


def bi_tempered_logistic_loss(
  activations: Float[Array, '*B C'],
  labels: Float[Array, '*B C'],
  t1: Scalar,
  t2: Scalar,
  label_smoothing: float = 0.0,
) -> Float[Array, '*B']:
  """Returns the bi-tempered logistic loss of each example in float32.

  It is the Bregman divergence of labels and tempered softmax probabilities.
  Labels and temperatures get no gradient.

  Args:
    activations: the logits.
    labels: probabilities, mostly one-hot.
    t1: the temperature of the logarithm; below 1 the loss is bounded.
    t2: the temperature of the softmax; above 1 its tail is heavy.
    label_smoothing: the mass of labels that is spread over other classes.
  """
  labels = labels.astype(jnp.float32)
  if label_smoothing:
    num_others = labels.shape[-1] - 1
    scale = 1.0 - label_smoothing * (num_others + 1) / num_others
    labels = scale * labels + label_smoothing / num_others
  t1, t2 = (jnp.asarray(t, jnp.float32) for t in (t1, t2))
  return _divergence(activations, labels, t1, t2)


def tempered_softmax(
  activations: Float[Array, '*B C'], t: Scalar
) -> Float[Array, '*B C']:
  """Returns exp_t(activations - normalizer) in float32, which sums to 1."""
  return jnp.exp(_log_softmax(activations, jnp.asarray(t, jnp.float32)))


def _log_softmax(activations: Array, t: Array) -> Array:
  """Returns the logarithm of `tempered_softmax`, where that may round to 0."""
  x = activations.astype(jnp.float32)
  return _log_of_exp_t(x - _normalizer(x, t), t)


@jax.custom_vjp
def _divergence(
  activations: Array, labels: Array, t1: Array, t2: Array
) -> Array:
  return _forward(activations, labels, t1, t2)[0]


def _forward(
  activations: Array, labels: Array, t1: Array, t2: Array
) -> tuple[Array, tuple[Array, ...]]:
  log_probs = _log_softmax(activations, t2)
  probs = jnp.exp(log_probs)
  entropy = labels * (_log_t(labels, t1) - _tempered(log_probs, t1))
  power = lambda x: x ** (2.0 - t1) / (2.0 - t1)
  terms = jnp.where(labels > 0, entropy, 0.0) - power(labels) + power(probs)
  return jnp.sum(terms, -1), (activations, labels, log_probs, t1, t2)


def _backward(
  residuals: tuple[Array, ...], cotangent: Array
) -> tuple[Array, Array, Array, Array]:
  activations, labels, log_probs, t1, t2 = residuals
  probs, exponent = jnp.exp(log_probs), t2 - t1
  # d loss / d p = (p - y) p^-t1 and d p / d activation is p^t2 up to the
  # normalizer. At p = 0 the limit is finite if t2 >= t1.
  power = jnp.where(exponent == 0, 1.0, jnp.exp(exponent * log_probs))
  factor = jnp.where((probs > 0) | (exponent >= 0), power, 0.0)
  slope = factor * (probs - labels)
  escort = probs**t2
  escort /= jnp.sum(escort, -1, keepdims=True)
  grad = slope - escort * jnp.sum(slope, -1, keepdims=True)
  grad = (cotangent[..., None] * grad).astype(activations.dtype)
  return grad, jnp.zeros_like(labels), jnp.zeros_like(t1), jnp.zeros_like(t2)


_divergence.defvjp(_forward, _backward)


def _normalizer(x: Array, t: Array) -> Array:
  """Returns the normalizer n for which exp_t(x - n) sums to 1.

  The sum is convex and decreasing in n, so Newton's method from a lower bound
  converges monotonically.
  """
  num_classes = jnp.asarray(x.shape[-1], jnp.float32)
  # Two lower bounds: the largest term alone is 1, and Jensen's inequality.
  mean_bound = jnp.mean(x, -1, keepdims=True) - _log_t(1.0 / num_classes, t)
  lower_bound = jnp.maximum(jnp.max(x, -1, keepdims=True), mean_bound)
  exact = jax.nn.logsumexp(x, -1, keepdims=True)

  def excess_and_slope(shift: Array) -> tuple[Array, Array]:
    probs = _exp_t(x - shift, t)
    return (
      jnp.sum(probs, -1, keepdims=True) - 1.0,
      jnp.sum(probs**t, -1, keepdims=True),
    )

  def newton_step(state: tuple[Array, Array]) -> tuple[Array, Array]:
    iteration, shift = state
    excess, slope = excess_and_slope(shift)
    return iteration + 1, shift + excess / slope

  def has_not_converged(state: tuple[Array, Array]) -> Array:
    iteration, shift = state
    excess, _ = excess_and_slope(shift)
    return (iteration < _MAX_ITERATIONS) & jnp.any(excess > _TOLERANCE)

  initial = jnp.where(t == 1.0, exact, lower_bound)
  return jax.lax.while_loop(
    has_not_converged, newton_step, (jnp.int32(0), initial)
  )[1]


def _log_t(x: Array, t: Array) -> Array:
  """Returns (x^(1 - t) - 1) / (1 - t), and log(x) for t = 1."""
  return _tempered(jnp.log(x), t)


def _tempered(log: Array, t: Array) -> Array:
  """Returns `_log_t` of the number with this logarithm."""
  exponent = 1.0 - t
  safe = jnp.where(exponent == 0, 1.0, exponent)
  return jnp.where(exponent == 0, log, jnp.expm1(safe * log) / safe)


def _exp_t(x: Array, t: Array) -> Array:
  """Returns the inverse of `_log_t`, 0 below its range."""
  return jnp.exp(_log_of_exp_t(x, t))


def _log_of_exp_t(x: Array, t: Array) -> Array:
  """Returns the logarithm of `_exp_t`."""
  exponent = 1.0 - t
  safe = jnp.where(exponent == 0, 1.0, exponent)
  logs = jnp.log1p(jnp.maximum(safe * x, -1.0)) / safe
  return jnp.where(exponent == 0, x, logs)
