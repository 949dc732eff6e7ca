# SPDX-License-Identifier: Apache-2.0
"""Bregman PCA: online principal components of activations."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit

__getattr__ = module_getattr(__name__)

_EPSILON = 1e-6


@enum.unique
class ActivationType(enum.StrEnum):
  """The activation function of the inputs; it determines the divergence."""

  IDENTITY = 'IDENTITY'
  LEAKY_RELU = 'LEAKY_RELU'
  SOFTMAX = 'SOFTMAX'


class BregmanSettings(base_layer.BaseLayer):
  """Fields of Bregman PCA, shared with the layers that contain one."""

  # Number of components, and of coefficients of an example.
  num_components: int = 0
  # The activation function of the inputs.
  activation_type: ActivationType = ActivationType.IDENTITY
  # The slope of LEAKY_RELU for negative inputs.
  negative_slope: float = 0.0
  # The decay of the moving average of the mean.
  mean_beta: float = 0.99
  # Learning rate, momentum and number of steps of the gradient descent that
  # finds the coefficients of a batch.
  coefficients_lr: float = 0.01
  coefficients_beta: float = 0.9
  coefficients_steps: int = 20
  # Learning rate and momentum of the components; one step per batch.
  components_lr: float = 0.01
  components_beta: float = 0.9
  # Training steps start_step <= i < end_step update mean and components.
  start_step: int = 0
  end_step: int = 0
  # Whether the components' learning rate is constant, or decays linearly to 0.
  constant_lr_schedule: bool = True


class BregmanPCA(BregmanSettings):
  """Returns its input and the input's coefficients in learned components.

  `activation(mean + coefficients @ components)` approximates the input. The
  error is the Bregman divergence of the activation's convex potential; with the
  identity it is the squared error of PCA. Training steps update the components;
  the layer adds no gradient to the rest of the model.

  References: A Generalization of Principal Component Analysis to the
  Exponential Family, https://cseweb.ucsd.edu/~dasgupta/papers/pca.pdf
  """

  # Sizes of the input dimensions after the batch.
  input_dims: int | Sequence[int] = 0

  def setup(self) -> None:
    self._check_settings()
    dims = self.input_dims
    dims = list(dims) if isinstance(dims, Sequence) else [dims]
    zero = WeightInit.Constant(0.0)
    components = [self.num_components, *dims]
    # float32, as replicas synchronize it by their mean.
    self._create_statistic('step', [], zero, jnp.float32)
    self._create_statistic('mean', [1, *dims], zero)
    self._create_statistic('components', components, None)
    self._create_statistic('components_momentum', components, zero)

  def base_learning_rate(
    self, step: Num[Array, '']
  ) -> tuple[Float[Array, ''], Float[Array, '']]:
    """Returns the factor of components_lr, and 1 if `step` updates, else 0."""
    is_active = (step >= self.start_step) & (step < self.end_step)
    is_active = is_active.astype(jnp.float32)
    if self.constant_lr_schedule:
      return is_active, is_active
    progress = (step - self.start_step) / (self.end_step - self.start_step)
    return jnp.maximum(1.0 - progress, 0.0) * is_active, is_active

  def reconstruct(
    self, coefficients: Float[Array, 'B K']
  ) -> Float[Array, ' B *D']:
    """Returns the approximate inputs with these coefficients."""
    return self._activate(
      _preactivations(
        coefficients, self.get_var('components'), self.get_var('mean')
      )
    )

  def bregman_loss_fn(
    self,
    coefficients: Float[Array, 'B K'],
    components: Float[Array, ' K *D'],
    mean: Float[Array, ' 1 *D'],
    labels: Float[Array, ' B *D'],
  ) -> Float[Array, '']:
    """Returns the mean Bregman divergence of labels and reconstructions.

    Args:
      coefficients: of the examples.
      components: the principal components.
      mean: in the space of preactivations.
      labels: the inputs to approximate; they get no gradient.
    """
    labels = jax.lax.stop_gradient(labels)
    logits = _preactivations(coefficients, components, mean)
    if self.activation_type == ActivationType.SOFTMAX:
      log_labels = jnp.log(jnp.maximum(labels, _EPSILON))
      return jnp.mean(
        jax.nn.logsumexp(logits, axis=-1)
        + jnp.sum(labels * (log_labels - logits), axis=-1)
      )
    if self.activation_type == ActivationType.IDENTITY:
      loss = 0.5 * jnp.square(logits - labels)
    else:
      # The potential of a leaky ReLU is x * activation(x) / 2.
      label_logits = self._invert(labels)
      loss = 0.5 * (logits * self._activate(logits) - label_logits * labels)
      loss -= labels * (logits - label_logits)
    return jnp.sum(loss) / labels.shape[0]

  def coefficients_grad_fn(self, *args: Array) -> Float[Array, 'B K']:
    """Returns the gradient of `bregman_loss_fn` wrt the coefficients."""
    return jax.grad(self.bregman_loss_fn, argnums=0)(*args)

  def components_grad_fn(self, *args: Array) -> Float[Array, ' K *D']:
    """Returns the gradient of `bregman_loss_fn` wrt the components."""
    return jax.grad(self.bregman_loss_fn, argnums=1)(*args)

  def __call__(
    self, inputs: Float[Array, ' B *D'], mask: Num[Array, 'B ...'] | None = None
  ) -> tuple[Float[Array, ' B *D'], Float[Array, 'B K']]:
    """Returns inputs and coefficients; training updates the components.

    Args:
      inputs: activations.
      mask: multiplies the coefficients in the update of the components; 0
        excludes them.
    """
    inputs = self._cast_to_fprop_dtype(inputs)
    labels = jax.lax.stop_gradient(inputs).astype(jnp.float32)
    mean, components = self.get_var('mean'), self.get_var('components')
    if not self.do_eval:
      mean = self._update_mean(mean, labels)
    coefficients = self._find_coefficients(components, mean, labels)
    if not self.do_eval:
      masked = coefficients if mask is None else coefficients * mask
      components = self._update_components(masked, components, mean, labels)
    self.add_summary(
      'bregman_loss',
      lambda: self.bregman_loss_fn(coefficients, components, mean, labels),
    )
    return inputs, coefficients.astype(inputs.dtype)

  def _update_mean(
    self, mean: Float[Array, ' 1 *D'], labels: Float[Array, ' B *D']
  ) -> Float[Array, ' 1 *D']:
    _, is_active = self.base_learning_rate(self.get_var('step'))
    rate = is_active * (1.0 - self.mean_beta)
    batch_mean = self._invert(jnp.mean(labels, axis=0, keepdims=True))
    mean = ((1.0 - rate) * mean + rate * batch_mean).astype(mean.dtype)
    self.update_var('mean', mean)
    return mean

  def _update_components(
    self,
    coefficients: Float[Array, 'B K'],
    components: Float[Array, ' K *D'],
    mean: Float[Array, ' 1 *D'],
    labels: Float[Array, ' B *D'],
  ) -> Float[Array, ' K *D']:
    step = self.get_var('step')
    rate, is_active = self.base_learning_rate(step)
    gradient = self.components_grad_fn(coefficients, components, mean, labels)
    momentum = self.components_beta * self.get_var('components_momentum')
    momentum += (1.0 - self.components_beta) * is_active * _unit_rms(gradient)
    components -= rate * self.components_lr * momentum
    self.update_var('components_momentum', momentum)
    self.update_var('components', components)
    self.update_var('step', step + 1)
    return components

  def _find_coefficients(
    self,
    components: Float[Array, ' K *D'],
    mean: Float[Array, ' 1 *D'],
    labels: Float[Array, ' B *D'],
  ) -> Float[Array, 'B K']:
    """Returns the coefficients of `labels`, by gradient descent from 0."""

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
    init = (zeros, zeros)
    coefficients, _ = jax.lax.fori_loop(0, self.coefficients_steps, step, init)
    return jax.lax.stop_gradient(coefficients)

  def _activate(self, x: Float[Array, '*shape']) -> Float[Array, '*shape']:
    if self.activation_type == ActivationType.IDENTITY:
      return x
    if self.activation_type == ActivationType.SOFTMAX:
      return jax.nn.softmax(x)
    return jax.nn.leaky_relu(x, self.negative_slope)

  def _invert(self, y: Float[Array, '*shape']) -> Float[Array, '*shape']:
    """Returns the preactivations of `y`; zero-mean for softmax."""
    if self.activation_type == ActivationType.IDENTITY:
      return y
    if self.activation_type == ActivationType.SOFTMAX:
      x = jnp.log(jnp.maximum(y, _EPSILON))
      return x - jnp.mean(x, axis=-1, keepdims=True)
    return jax.nn.leaky_relu(y, 1.0 / self.negative_slope)

  def _create_statistic(
    self,
    name: str,
    shape: Sequence[int],
    init: WeightInit | None,
    dtype: Any = None,
  ) -> None:
    collection = base_layer.WeightHParamsCollection.REQUIRES_MEAN_SYNC
    hparams = WeightHParams(
      shape=shape,
      init=init,
      dtype=dtype,
      mesh_shape=self.mesh_shape,
      collections=[collection],
    )
    self.create_variable(name, hparams, trainable=False)

  def _check_settings(self) -> None:
    layer_name = f'{type(self).__name__} {self.name!r}'
    if self.num_components <= 0 or not self.input_dims:
      raise ValueError(
        f'{layer_name} needs num_components > 0 and input_dims, got '
        f'{self.num_components} and {self.input_dims}'
      )
    if self.end_step <= self.start_step:
      raise ValueError(
        f'{layer_name} needs end_step > start_step={self.start_step}, got '
        f'{self.end_step}; the components learn in the steps between'
      )
    ActivationType(self.activation_type)  # ValueError for other strings.
    is_leaky = self.activation_type == ActivationType.LEAKY_RELU
    if is_leaky and self.negative_slope <= 0:
      raise ValueError(
        f'{layer_name} needs negative_slope > 0 with LEAKY_RELU, got '
        f'{self.negative_slope}; it is inverted'
      )


def _preactivations(
  coefficients: Float[Array, 'B K'],
  components: Float[Array, ' K *D'],
  mean: Float[Array, ' 1 *D'],
) -> Float[Array, ' B *D']:
  return jnp.tensordot(coefficients, components, 1) + mean


def _unit_rms(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Returns `x` scaled to a root mean square of 1."""
  norm = jnp.maximum(jnp.linalg.norm(x.reshape(-1)), _EPSILON)
  return x / norm * x.size**0.5
