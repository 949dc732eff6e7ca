# SPDX-License-Identifier: Apache-2.0
"""Lion: the sign of an interpolated momentum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from praxis import base_layer
from praxis.nested_map import NestedMap
from praxis.optimizers import base, moments, transforms
from praxis.pytypes import JTensor, Nested


class Lion(base.BaseOptimizer):
  """sign(beta1 m + (1 - beta1) g), with m <- beta2 m + (1 - beta2) g.

  References:
    Chen et al., https://arxiv.org/abs/2302.06675
  """

  beta1: float = 0.9
  beta2: float = 0.99
  # Largest RMS of the update of one variable; 0 or negative: not clipped.
  clip_threshold: float = 1.0
  # Adds weight * w to the update, before the learning rate.
  weight_decay: float = 0.0
  # Storage of the momentum.
  m_dtype: Any = jnp.bfloat16

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: transforms.LearningRateFn,
    var_weight_hparams: Nested[base_layer.WeightHParams] | None,
  ) -> transforms.GradientTransformation:
    def init(params: Nested[JTensor]) -> transforms.State:
      m = jax.tree.map(lambda w: jnp.zeros_like(w, self.m_dtype), params)
      return NestedMap(count=jnp.zeros([], jnp.int32), m=m)

    def update(
      grads: Nested[JTensor],
      state: transforms.State,
      params: Nested[JTensor] | None = None,
    ) -> tuple[Nested[JTensor], transforms.State]:
      if self.weight_decay and params is None:
        raise ValueError('weight_decay needs the variables; pass params')
      lr = learning_rate_fn(state.count)
      updates = jax.tree.map(
        lambda g, m, w: -lr.astype(g.dtype) * self._direction(g, m, w),
        grads,
        state.m,
        grads if params is None else params,
      )
      m = jax.tree.map(
        lambda g, m: _mix(m.astype(g.dtype), g, self.beta2).astype(m.dtype),
        grads,
        state.m,
      )
      return updates, NestedMap(count=state.count + 1, m=m)

    return transforms.sharded(init, update)

  def _direction(self, g: JTensor, m: JTensor, w: JTensor) -> JTensor:
    step = jnp.sign(_mix(m.astype(g.dtype), g, self.beta1))
    step = moments.clip_rms(step, self.clip_threshold)
    if not self.weight_decay:
      return step
    return step + (self.weight_decay * w).astype(g.dtype)


def _mix(m: JTensor, g: JTensor, decay: float) -> JTensor:
  return decay * m + (1.0 - decay) * g
