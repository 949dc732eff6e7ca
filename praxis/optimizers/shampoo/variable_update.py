# SPDX-License-Identifier: Apache-2.0
"""Shampoo's update of one variable."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from praxis.optimizers import masked_trees
from praxis.optimizers.shampoo import grafting, quantized_storage
from praxis.optimizers.shampoo.hyperparams import ShampooHyperparams
from praxis.pytypes import JTensor


class Slot(NamedTuple):
  """The state of one variable without its matrices."""

  # Sums or averages of squared gradients for grafting.
  squares: Any
  # Momentum of the grafting optimizer, and of Shampoo.
  diagonal_momentum: quantized_storage.Stored
  momentum: quantized_storage.Stored


class StepParams(NamedTuple):
  """Values of a step that are common to all variables."""

  lr: Float[Array, '']
  # Whether preconditioners are in use.
  is_preconditioned: Bool[Array, '']


def init_slot(hyperparams: ShampooHyperparams, w: JTensor) -> Slot:
  """Returns the initial state of a variable."""
  # Separate buffers: states are donated.
  squares, grafted, preconditioned = (
    jnp.zeros(w.shape, jnp.float32) for _ in range(3)
  )
  has_squares = hyperparams.graft_type.has_squares
  dtype = hyperparams.momentum_dtype(w.ndim)
  return Slot(
    squares if has_squares else masked_trees.BpropMaskedNode(),
    quantized_storage.store(grafted, dtype),
    quantized_storage.store(preconditioned, dtype),
  )


def update(
  hyperparams: ShampooHyperparams,
  g: Float[Array, ...],
  w: JTensor,
  direction: Float[Array, ...] | None,
  slot: Slot,
  step_params: StepParams,
) -> tuple[Float[Array, ...], Slot]:
  """Returns the update of one variable and its new state.

  Args:
    hyperparams: the hyperparameters.
    g: the gradient.
    w: the variable.
    direction: the preconditioned gradient; None for a variable without
      preconditioners.
    slot: the state of the variable.
    step_params: learning rate and phase of the step.
  """
  grafted, squares = grafting.graft(
    hyperparams.graft_type,
    g,
    slot.squares,
    decay=hyperparams.beta2,
    epsilon=hyperparams.diagonal_epsilon,
    largest_rms=hyperparams.clip_by_scaled_gradient_norm,
  )
  lr = step_params.lr
  has_late_lr = hyperparams.decoupled_learning_rate_from_momentum
  grafted = grafted if has_late_lr else grafted * lr
  direction = grafted if direction is None else direction
  norm_ratio = jnp.linalg.norm(grafted) / (jnp.linalg.norm(direction) + 1e-16)
  direction = direction * norm_ratio

  decay = hyperparams.weight_decay * w.astype(jnp.float32)
  if not hyperparams.decoupled_weight_decay_from_momentum:
    direction, grafted = direction + decay, grafted + decay
  beta1 = hyperparams.beta1
  weight = 1.0 - beta1 if hyperparams.moving_average_for_momentum else 1.0
  momentum = beta1 * quantized_storage.load(slot.momentum) + weight * direction
  grafted_momentum = (
    beta1 * quantized_storage.load(slot.diagonal_momentum) + weight * grafted
  )
  is_preconditioned = step_params.is_preconditioned
  step = jnp.where(is_preconditioned, momentum, grafted_momentum)
  if hyperparams.nesterov:
    gradient = jnp.where(is_preconditioned, direction, grafted)
    step = weight * gradient + beta1 * step
  step = step * lr if has_late_lr else step
  if hyperparams.decoupled_weight_decay_from_momentum:
    step = step + lr * decay
  dtype = hyperparams.momentum_dtype(w.ndim)
  return -step, Slot(
    squares,
    quantized_storage.store(grafted_momentum, dtype),
    quantized_storage.store(momentum, dtype),
  )
