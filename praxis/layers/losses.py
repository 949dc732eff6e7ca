# SPDX-License-Identifier: Apache-2.0
"""The bi-tempered logistic loss, https://arxiv.org/abs/1906.03361."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.base_layer import (
  WeightHParams,
  WeightHParamsCollection,
  WeightInit,
)

# Newton steps at most; they end where probabilities sum to 1 but for _ENOUGH.
_STEPS = 64
_ENOUGH = 1e-6
Scalar = Float[Array, ''] | float | int


class BiTemperedLoss(base_layer.BaseLayer):
  """A cross entropy that outliers and wrong labels sway less.

  The temperatures go from (1, 1), which is the cross entropy, to (t1, t2) over
  the training steps start_step to end_step.
  """

  # Below 1 the loss of an example is bounded.
  t1: float = 1.0
  # Above 1 the probabilities have a heavy tail.
  t2: float = 1.0
  # What share of the labels is spread over the other classes.
  label_smoothing: float = 0.0
  # The steps; if the last is 0 the temperatures are (t1, t2) throughout.
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
    """Returns how near to (1, 1) the temperatures are at step `count`."""
    if self.end_step == 0:
      return jnp.zeros([], jnp.float32)
    done = jnp.asarray(count, jnp.float32) - self.start_step
    steps = max(self.end_step - self.start_step, 1)
    return jnp.clip(1.0 - done / steps, 0.0, 1.0)

  def __call__(
    self, logits: Float[Array, '*B C'], labels: Float[Array, '*B C']
  ) -> Float[Array, '*B']:
    """Returns the loss of each example; labels are probabilities."""
    start = 0.0
    if not self.do_eval:
      count = self.get_var('count')
      self.update_var('count', count + 1.0)
      start = self.temperature_schedule(count)
    return bi_tempered_logistic_loss(
      logits,
      labels,
      start + self.t1 * (1.0 - start),
      start + self.t2 * (1.0 - start),
      label_smoothing=self.label_smoothing,
    )


def bi_tempered_logistic_loss(
  activations: Float[Array, '*B C'],
  labels: Float[Array, '*B C'],
  t1: Scalar,
  t2: Scalar,
  label_smoothing: float = 0.0,
) -> Float[Array, '*B']:
  """Returns the Bregman divergence of labels and tempered probabilities.

  It is computed, and returned, in float32; labels and temperatures have no
  gradient.

  Args:
    activations: the logits.
    labels: probabilities, mostly one-hot.
    t1: the temperature of the logarithm: below 1, losses are bounded.
    t2: the temperature of the softmax: above 1, its tail is heavy.
    label_smoothing: what share of the labels is spread over other classes.
  """
  labels = labels.astype(jnp.float32)
  if label_smoothing:
    others = labels.shape[-1] - 1
    rest = 1.0 - label_smoothing * (others + 1) / others
    labels = rest * labels + label_smoothing / others
  t1, t2 = (jnp.asarray(t, jnp.float32) for t in (t1, t2))
  return _divergence(activations, labels, t1, t2)


def tempered_softmax(
  activations: Float[Array, '*B C'], t: Scalar
) -> Float[Array, '*B C']:
  """Returns probabilities in float32: exp_t of the shifted activations."""
  x, t = activations.astype(jnp.float32), jnp.asarray(t, jnp.float32)
  return _exp_t(x - _normalizer(x, t), t)


@jax.custom_vjp
def _divergence(
  activations: Array, labels: Array, t1: Array, t2: Array
) -> Array:
  return _forward(activations, labels, t1, t2)[0]


def _forward(
  activations: Array, labels: Array, t1: Array, t2: Array
) -> tuple[Array, tuple[Array, ...]]:
  probs = tempered_softmax(activations, t2)
  entropy = labels * (_log_t(labels, t1) - _log_t(probs, t1))
  power = lambda x: x ** (2.0 - t1) / (2.0 - t1)
  terms = jnp.where(labels > 0, entropy, 0.0) - power(labels) + power(probs)
  return jnp.sum(terms, -1), (activations, labels, probs, t1, t2)


def _backward(
  kept: tuple[Array, ...], cotangent: Array
) -> tuple[Array, Array, Array, Array]:
  activations, labels, probs, t1, t2 = kept
  # By probabilities (p - y) p^-t1, of which p^t2 is the slope. A probability
  # of 0 has a gradient if the temperatures are equal: the limit's.
  factor = jnp.where((probs > 0) | (t2 >= t1), probs ** (t2 - t1), 0.0)
  slope = factor * (probs - labels)
  escort = probs**t2
  escort /= jnp.sum(escort, -1, keepdims=True)
  grad = slope - escort * jnp.sum(slope, -1, keepdims=True)
  grad = (cotangent[..., None] * grad).astype(activations.dtype)
  return grad, jnp.zeros_like(labels), jnp.zeros_like(t1), jnp.zeros_like(t2)


_divergence.defvjp(_forward, _backward)


def _normalizer(x: Array, t: Array) -> Array:
  """Returns what to subtract so that exp_t of the rest sums to 1.

  The sum is convex and falls, so Newton's method from the left of the solution
  comes ever closer to it.
  """
  size = jnp.asarray(x.shape[-1], jnp.float32)
  # Both are at its left: one term alone is 1, or all are as their mean is.
  bound = jnp.mean(x, -1, keepdims=True) - _log_t(1.0 / size, t)
  left = jnp.maximum(jnp.max(x, -1, keepdims=True), bound)
  exact = jax.nn.logsumexp(x, -1, keepdims=True)

  def excess(shift: Array) -> tuple[Array, Array]:
    probs = _exp_t(x - shift, t)
    return (
      jnp.sum(probs, -1, keepdims=True) - 1.0,
      jnp.sum(probs**t, -1, keepdims=True),
    )

  def improve(state: tuple[Array, Array]) -> tuple[Array, Array]:
    step, shift = state
    over, slope = excess(shift)
    return step + 1, shift + over / slope

  def is_far(state: tuple[Array, Array]) -> Array:
    step, shift = state
    return (step < _STEPS) & jnp.any(excess(shift)[0] > _ENOUGH)

  start = jnp.where(t == 1.0, exact, left)
  return jax.lax.while_loop(is_far, improve, (jnp.int32(0), start))[1]


def _log_t(x: Array, t: Array) -> Array:
  """Returns (x^(1 - t) - 1) / (1 - t), the logarithm if t is 1."""
  log, rest = jnp.log(x), 1.0 - t
  safe = jnp.where(rest == 0, 1.0, rest)
  return jnp.where(rest == 0, log, jnp.expm1(safe * log) / safe)


def _exp_t(x: Array, t: Array) -> Array:
  """Returns the inverse of `_log_t`, 0 below what that takes."""
  rest = 1.0 - t
  safe = jnp.where(rest == 0, 1.0, rest)
  powers = jnp.exp(jnp.log1p(jnp.maximum(safe * x, -1.0)) / safe)
  return jnp.where(rest == 0, jnp.exp(x), powers)
