# SPDX-License-Identifier: Apache-2.0
"""Shampoo's update of one variable."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from praxis.optimizers import masked_trees
from praxis.optimizers.shampoo import grafting, quantized_storage
from praxis.optimizers.shampoo.hyperparams import ShampooRule
from praxis.pytypes import JTensor


class Slot(NamedTuple):
  """The state of one variable beside its matrices."""

  # Sums or averages of squared gradients, for grafting.
  squares: Any
  # Momentum of the grafted-on optimizer, and of Shampoo.
  diagonal_momentum: quantized_storage.Stored
  momentum: quantized_storage.Stored


class Now(NamedTuple):
  """What a step has for all variables."""

  lr: Float[Array, '']
  # Whether preconditioners are in use already.
  running: Bool[Array, '']


def init_slot(rule: ShampooRule, w: JTensor) -> Slot:
  """Returns the state of a variable before the first step."""
  # Each has memory of its own: states are donated.
  squares, simple, own = (jnp.zeros(w.shape, jnp.float32) for _ in range(3))
  if not rule.graft_type.has_squares:
    squares = masked_trees.BpropMaskedNode()
  dtype = rule.momentum_dtype(w.ndim)
  return Slot(
    squares,
    quantized_storage.store(simple, dtype),
    quantized_storage.store(own, dtype),
  )


def update(
  rule: ShampooRule,
  g: Float[Array, ...],
  w: JTensor,
  direction: Float[Array, ...] | None,
  slot: Slot,
  now: Now,
) -> tuple[Float[Array, ...], Slot]:
  """Returns the update of one variable and its new state.

  `direction` is the preconditioned gradient; None for a variable without
  preconditioners.
  """
  simple, squares = grafting.graft(
    rule.graft_type,
    g,
    slot.squares,
    decay=rule.beta2,
    epsilon=rule.diagonal_epsilon,
    largest_rms=rule.clip_by_scaled_gradient_norm,
  )
  late_lr = rule.decoupled_learning_rate_from_momentum
  simple = simple if late_lr else simple * now.lr
  direction = simple if direction is None else direction
  size = jnp.linalg.norm(simple) / (jnp.linalg.norm(direction) + 1e-16)
  direction = direction * size

  decay = rule.weight_decay * w.astype(jnp.float32)
  if not rule.decoupled_weight_decay_from_momentum:
    direction, simple = direction + decay, simple + decay
  new = 1.0 - rule.beta1 if rule.moving_average_for_momentum else 1.0
  momentum = (
    rule.beta1 * quantized_storage.load(slot.momentum) + new * direction
  )
  simple_momentum = (
    rule.beta1 * quantized_storage.load(slot.diagonal_momentum) + new * simple
  )
  step = jnp.where(now.running, momentum, simple_momentum)
  if rule.nesterov:
    step = new * jnp.where(now.running, direction, simple) + rule.beta1 * step
  step = step * now.lr if late_lr else step
  if rule.decoupled_weight_decay_from_momentum:
    step = step + now.lr * decay
  dtype = rule.momentum_dtype(w.ndim)
  return -step, Slot(
    squares,
    quantized_storage.store(simple_momentum, dtype),
    quantized_storage.store(momentum, dtype),
  )
