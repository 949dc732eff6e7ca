# SPDX-License-Identifier: Apache-2.0
"""Lion (arXiv:2302.06675): the sign of an interpolated momentum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from praxis import value_domains
from praxis.nested_map import NestedMap
from praxis.optimizers import base_optimizer, sharded_transforms, update_math
from praxis.pytypes import JTensor, Nested


def sharded_lion(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  beta1: float,
  beta2: float,
  m_dtype: Any,
  update_capping: float,
  weight_decay: float,
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns Lion.

  Args:
    learning_rate_fn: the learning rate by step.
    beta1: weight of the momentum in the update.
    beta2: decay of the momentum.
    m_dtype: storage dtype of the momentum.
    update_capping: maximum RMS of an update; 0 or negative: no clipping.
    weight_decay: weight of the variables in the update.

  References:
    Chen et al., program 1, https://arxiv.org/abs/2302.06675
  """

  def init(params: Nested[JTensor]) -> sharded_transforms.State:
    m = jax.tree.map(lambda w: jnp.zeros_like(w, m_dtype), params)
    return NestedMap(count=jnp.zeros([], jnp.int32), m=m)

  def direction(g: JTensor, m: JTensor, w: JTensor) -> JTensor:
    step = jnp.sign(update_math.moving_average(m.astype(g.dtype), g, beta1))
    step = update_math.clip_rms(step, update_capping)
    return step + (weight_decay * w).astype(g.dtype) if weight_decay else step

  def update(
    grads: Nested[JTensor],
    state: sharded_transforms.State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], sharded_transforms.State]:
    if weight_decay and params is None:
      raise ValueError(
        'weight_decay needs the variables; pass params to update'
      )
    lr = learning_rate_fn(state.count)
    updates = jax.tree.map(
      lambda g, m, w: -lr.astype(g.dtype) * direction(g, m, w),
      grads,
      state.m,
      grads if params is None else params,
    )
    m = jax.tree.map(
      lambda g, m: update_math.moving_average(
        m.astype(g.dtype), g, beta2
      ).astype(m.dtype),
      grads,
      state.m,
    )
    return updates, NestedMap(count=state.count + 1, m=m)

  return sharded_transforms.sharded(init, update)


class Lion(base_optimizer.BaseOptimizer):
  """sign(beta1 m + (1 - beta1) g), with m <- beta2 m + (1 - beta2) g."""

  beta1: float = value_domains.field(0.9, ge=0.0, lt=1.0)
  beta2: float = value_domains.field(0.99, ge=0.0, lt=1.0)
  # Maximum RMS of the update of a variable; 0 or negative: no clipping.
  clip_threshold: float = 1.0
  # Adds weight * w to the update, before the learning rate.
  weight_decay: float = 0.0
  # Storage dtype of the momentum.
  m_dtype: Any = jnp.bfloat16

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    return sharded_lion(
      learning_rate_fn,
      self.beta1,
      self.beta2,
      self.m_dtype,
      self.clip_threshold,
      self.weight_decay,
    )
