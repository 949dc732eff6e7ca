# SPDX-License-Identifier: Apache-2.0
"""Principal components of what passes by, for outputs of any activation."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.base_layer import WeightHParams, WeightInit

_TINY = 1e-6


@enum.unique
class ActivationType(enum.StrEnum):
  """The activation whose outputs are described; it picks the divergence."""

  IDENTITY = 'IDENTITY'
  LEAKY_RELU = 'LEAKY_RELU'
  SOFTMAX = 'SOFTMAX'


class BregmanSettings(base_layer.BaseLayer):
  """The settings of Bregman PCA, also of the layers that contain one."""

  # How many components, which is the number of coefficients of an example.
  num_components: int = 0
  # The activation that made the inputs.
  activation_type: ActivationType = ActivationType.IDENTITY
  # Slope of LEAKY_RELU below 0.
  negative_slope: float = 0.0
  # How much of the mean a step keeps.
  mean_beta: float = 0.99
  # Step size and momentum of the descent to the coefficients of one batch, and
  # how many steps it has.
  coefficients_lr: float = 0.01
  coefficients_beta: float = 0.9
  coefficients_steps: int = 20
  # Step size and momentum of the components, which take a step a batch.
  components_lr: float = 0.01
  components_beta: float = 0.9
  # Mean and components change in training steps start_step <= i < end_step.
  start_step: int = 0
  end_step: int = 0
  # Whether the components' step size is constant, or falls linearly to 0.
  constant_lr_schedule: bool = True


class BregmanPCA(BregmanSettings):
  """Passes its input on, with its coefficients in learned components.

  `activation(mean + coefficients @ components)` approximates the input. PCA
  measures the error by squares; this by the Bregman divergence that belongs to
  the activation. Training steps move the components; nothing here has a
  gradient for the rest of the model.

  References: A generalization of principal component analysis to the
  exponential family, https://cseweb.ucsd.edu/~dasgupta/papers/pca.pdf
  """

  # Sizes of all dimensions of the input but the first, the batch.
  input_dims: int | Sequence[int] = 0

  def setup(self) -> None:
    self._check_settings()
    dims = self.input_dims
    dims = list(dims) if isinstance(dims, Sequence) else [dims]
    zero = WeightInit.Constant(0.0)
    components = [self.num_components, *dims]
    # Counted in float32: the mean over replicas is taken of it.
    self._create_statistic('step', [], zero, jnp.float32)
    self._create_statistic('mean', [1, *dims], zero)
    self._create_statistic('components', components, None)
    self._create_statistic('components_momentum', components, zero)

  def base_learning_rate(
    self, step: Num[Array, '']
  ) -> tuple[Float[Array, ''], Float[Array, '']]:
    """Returns the factor of components_lr, and 1 if step i updates, else 0."""
    updates = (step >= self.start_step) & (step < self.end_step)
    updates = updates.astype(jnp.float32)
    if self.constant_lr_schedule:
      return updates, updates
    done = (step - self.start_step) / (self.end_step - self.start_step)
    return jnp.maximum(1.0 - done, 0.0) * updates, updates

  def reconstruct(
    self, coefficients: Float[Array, 'B K']
  ) -> Float[Array, 'B *D']:
    """Returns the inputs that have these coefficients, approximately."""
    return self._activate(
      _mix(coefficients, self.get_var('components'), self.get_var('mean'))
    )

  def bregman_loss_fn(
    self,
    coefficients: Float[Array, 'B K'],
    components: Float[Array, 'K *D'],
    mean: Float[Array, '1 *D'],
    labels: Float[Array, 'B *D'],
  ) -> Float[Array, '']:
    """Returns the mean divergence of `labels` and what approximates them."""
    labels = jax.lax.stop_gradient(labels)
    before = _mix(coefficients, components, mean)
    if self.activation_type == ActivationType.SOFTMAX:
      log_labels = jnp.log(jnp.maximum(labels, _TINY))
      return jnp.mean(
        jax.nn.logsumexp(before, axis=-1)
        + jnp.sum(labels * (log_labels - before), axis=-1)
      )
    if self.activation_type == ActivationType.IDENTITY:
      loss = 0.5 * jnp.square(before - labels)
    else:
      # The integral of the activation is x * activation(x) / 2.
      labels_before = self._invert(labels)
      loss = 0.5 * (before * self._activate(before) - labels_before * labels)
      loss -= labels * (before - labels_before)
    return jnp.sum(loss) / labels.shape[0]

  def coefficients_grad_fn(self, *args: Array) -> Float[Array, 'B K']:
    """Returns the gradient of `bregman_loss_fn` by the coefficients."""
    return jax.grad(self.bregman_loss_fn, argnums=0)(*args)

  def components_grad_fn(self, *args: Array) -> Float[Array, 'K *D']:
    """Returns the gradient of `bregman_loss_fn` by the components."""
    return jax.grad(self.bregman_loss_fn, argnums=1)(*args)

  def __call__(
    self, inputs: Float[Array, 'B *D'], mask: Num[Array, 'B ...'] | None = None
  ) -> tuple[Float[Array, 'B *D'], Float[Array, 'B K']]:
    """Returns inputs and coefficients; training moves the components.

    Args:
      inputs: what to describe.
      mask: multiplies the coefficients, for the components' step only: 0 for
        what should not count.
    """
    inputs = self._cast_to_fprop_dtype(inputs)
    labels = jax.lax.stop_gradient(inputs).astype(jnp.float32)
    mean, components = self.get_var('mean'), self.get_var('components')
    if not self.do_eval:
      mean = self._update_mean(mean, labels)
    coefficients = self._solve(components, mean, labels)
    if not self.do_eval:
      counted = coefficients if mask is None else coefficients * mask
      components = self._update_components(counted, components, mean, labels)
    self.add_summary(
      'bregman_loss',
      lambda: self.bregman_loss_fn(coefficients, components, mean, labels),
    )
    return inputs, coefficients.astype(inputs.dtype)

  def _update_mean(
    self, mean: Float[Array, '1 *D'], labels: Float[Array, 'B *D']
  ) -> Float[Array, '1 *D']:
    _, updates = self.base_learning_rate(self.get_var('step'))
    rate = updates * (1.0 - self.mean_beta)
    new = self._invert(jnp.mean(labels, axis=0, keepdims=True))
    mean = ((1.0 - rate) * mean + rate * new).astype(mean.dtype)
    self.update_var('mean', mean)
    return mean

  def _update_components(
    self,
    coefficients: Float[Array, 'B K'],
    components: Float[Array, 'K *D'],
    mean: Float[Array, '1 *D'],
    labels: Float[Array, 'B *D'],
  ) -> Float[Array, 'K *D']:
    step = self.get_var('step')
    rate, updates = self.base_learning_rate(step)
    gradient = self.components_grad_fn(coefficients, components, mean, labels)
    momentum = self.components_beta * self.get_var('components_momentum')
    momentum += (1.0 - self.components_beta) * updates * _unit_rms(gradient)
    components -= rate * self.components_lr * momentum
    self.update_var('components_momentum', momentum)
    self.update_var('components', components)
    self.update_var('step', step + 1)
    return components

  def _solve(
    self,
    components: Float[Array, 'K *D'],
    mean: Float[Array, '1 *D'],
    labels: Float[Array, 'B *D'],
  ) -> Float[Array, 'B K']:
    """Descends to the coefficients of `labels`, from 0."""

    def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
      coefficients, momentum = carry
      gradient = self.coefficients_grad_fn(
        coefficients, components, mean, labels
      )
      momentum = self.coefficients_beta * momentum
      momentum += (1.0 - self.coefficients_beta) * _unit_rms(gradient)
      rate = (1.0 - i / self.coefficients_steps) * self.coefficients_lr
      return coefficients - rate * momentum, momentum

    zeros = jnp.zeros([labels.shape[0], self.num_components], jnp.float32)
    start = (zeros, zeros)
    coefficients, _ = jax.lax.fori_loop(0, self.coefficients_steps, step, start)
    return jax.lax.stop_gradient(coefficients)

  def _activate(self, x: Float[Array, '*shape']) -> Float[Array, '*shape']:
    if self.activation_type == ActivationType.IDENTITY:
      return x
    if self.activation_type == ActivationType.SOFTMAX:
      return jax.nn.softmax(x)
    return jax.nn.leaky_relu(x, self.negative_slope)

  def _invert(self, y: Float[Array, '*shape']) -> Float[Array, '*shape']:
    """Returns what the activation makes `y` of; of mean 0 for softmax."""
    if self.activation_type == ActivationType.IDENTITY:
      return y
    if self.activation_type == ActivationType.SOFTMAX:
      x = jnp.log(jnp.maximum(y, _TINY))
      return x - jnp.mean(x, axis=-1, keepdims=True)
    return jax.nn.leaky_relu(y, 1.0 / self.negative_slope)

  def _create_statistic(
    self,
    name: str,
    shape: Sequence[int],
    init: WeightInit | None,
    dtype: Any = None,
  ) -> None:
    flags = base_layer.WeightHParamsCollection
    hparams = WeightHParams(
      shape=shape,
      init=init,
      dtype=dtype,
      mesh_shape=self.mesh_shape,
      collections=[flags.REQUIRES_MEAN_SYNC],
    )
    self.create_variable(name, hparams, trainable=False)

  def _check_settings(self) -> None:
    who = f'{type(self).__name__} {self.name!r}'
    if self.num_components <= 0 or not self.input_dims:
      raise ValueError(
        f'{who} needs num_components > 0 and input_dims, got '
        f'{self.num_components} and {self.input_dims}'
      )
    if self.end_step <= self.start_step:
      raise ValueError(
        f'{who} needs end_step > start_step={self.start_step}, got '
        f'{self.end_step}; the components learn in the steps between'
      )
    ActivationType(self.activation_type)  # ValueError if it is none.
    is_leaky = self.activation_type == ActivationType.LEAKY_RELU
    if is_leaky and self.negative_slope <= 0:
      raise ValueError(
        f'{who} needs negative_slope > 0 with LEAKY_RELU, got '
        f'{self.negative_slope}; it is inverted'
      )


def _mix(
  coefficients: Float[Array, 'B K'],
  components: Float[Array, 'K *D'],
  mean: Float[Array, '1 *D'],
) -> Float[Array, 'B *D']:
  return jnp.tensordot(coefficients, components, 1) + mean


def _unit_rms(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Returns `x` scaled so that the mean of its squares is 1."""
  norm = jnp.maximum(jnp.linalg.norm(x.reshape(-1)), _TINY)
  return x / norm * x.size**0.5
