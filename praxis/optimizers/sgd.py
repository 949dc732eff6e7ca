# SPDX-License-Identifier: Apache-2.0
"""Stochastic gradient descent with optional momentum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from praxis.optimizers import base_optimizer, sharded_transforms
from praxis.pytypes import JTensor, Nested


def sharded_sgd(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  momentum: float | None = None,
  nesterov: bool = False,
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns SGD: trace <- g + momentum * trace, update = -lr * trace.

  With `nesterov` the update is -lr * (g + momentum * trace). Without momentum
  there is no trace in the state, which is that of `optax.sgd`.

  References:
    Sutskever et al., https://proceedings.mlr.press/v28/sutskever13.html
  """

  def init(params: Nested[JTensor]) -> sharded_transforms.State:
    trace = optax.EmptyState()
    if momentum is not None:
      trace = optax.TraceState(jax.tree.map(jnp.zeros_like, params))
    return trace, optax.ScaleByScheduleState(jnp.zeros([], jnp.int32))

  def update(
    grads: Nested[JTensor],
    state: sharded_transforms.State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], sharded_transforms.State]:
    del params
    trace, schedule = state
    direction = grads
    if momentum is not None:

      def decay(g: JTensor, t: JTensor) -> JTensor:
        return (g + momentum * t).astype(t.dtype)

      trace = optax.TraceState(jax.tree.map(decay, grads, trace.trace))
      direction = trace.trace
      if nesterov:
        direction = jax.tree.map(decay, grads, trace.trace)
    updates = _scale(direction, -learning_rate_fn(schedule.count))
    return updates, (trace, optax.ScaleByScheduleState(schedule.count + 1))

  return sharded_transforms.sharded(init, update)


class Sgd(base_optimizer.BaseOptimizer):
  """Stochastic gradient descent."""

  # Decay of the trace of gradients; None: no trace.
  momentum: float | None = None
  nesterov: bool = False

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    return sharded_sgd(learning_rate_fn, self.momentum, self.nesterov)


class ShardedSgd(Sgd):
  """Alias of `Sgd`, under the name that upstream has."""


def _scale(updates: Nested[JTensor], factor: JTensor) -> Nested[JTensor]:
  return jax.tree.map(lambda u: factor.astype(u.dtype) * u, updates)
