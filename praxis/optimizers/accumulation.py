# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation over several batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from praxis import base_layer, pax_fiddle, value_domains
from praxis.nested_map import NestedMap
from praxis.optimizers import conditional_step, sharded_transforms
from praxis.optimizers.base_optimizer import BaseOptimizer
from praxis.pytypes import JTensor, Nested

# Fields of BaseOptimizer outside of the update rule.
_FIELDS_OF_THE_CHAIN = (
  'l1_regularizer_weight',
  'l2_regularizer_weight',
  'decoupled_weight_decay',
  'clip_gradient_norm_to_value',
  'clip_gradient_single_norm_to_value',
  'ema_decay',
  'ewc_regularizer_weight',
)


def sharded_static_accumulation(
  num_sub_batches: int,
  base_tx: sharded_transforms.GradientTransformation,
  accumulation_use_cond_op: bool = False,
) -> sharded_transforms.ShardedGradientTransformation:
  """Applies `base_tx` to the mean of every `num_sub_batches` gradients.

  Updates between its steps are zero. Gradients are accumulated in float32.

  Args:
    num_sub_batches: number of gradients per update.
    base_tx: the transformation of the mean gradient.
    accumulation_use_cond_op: whether to use `jax.lax.cond`. It may need less
      memory, but under vmap (stacked layers) computes both branches.
  """
  base = sharded_transforms.as_sharded(base_tx)
  select = _cond if accumulation_use_cond_op else conditional_step.run_if

  def init(params: Nested[JTensor]) -> sharded_transforms.State:
    zeros = _zeros(params, jnp.float32)
    return _state(base.init(params), zeros, jnp.zeros([], jnp.int32))

  def update(
    updates: Nested[JTensor],
    state: sharded_transforms.State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], sharded_transforms.State]:
    total = jax.tree.map(jnp.add, state.accumulated_update, updates)
    count = state.count + 1
    is_due = count >= num_sub_batches

    def step() -> tuple[
      Nested[JTensor], sharded_transforms.State, Nested[JTensor]
    ]:
      mean = jax.tree.map(
        lambda x, u: (x / num_sub_batches).astype(u.dtype), total, updates
      )
      new, base_state = base.update(mean, state.base_state, params)
      new = jax.tree.map(lambda x, u: x.astype(u.dtype), new, updates)
      return new, base_state, _zeros(total)

    no_update = (_zeros(updates), state.base_state, total)
    new, base_state, total = select(is_due, step, no_update)
    return new, _state(base_state, total, jnp.where(is_due, 0, count))

  def init_partition_spec(
    hparams: Nested[base_layer.WeightHParams],
  ) -> sharded_transforms.State:
    sums = jax.tree.map(
      lambda hp: sharded_transforms.like(hp, dtype=jnp.float32), hparams
    )
    count = sharded_transforms.replicated([], jnp.int32)
    return _state(base.init_partition_spec(hparams), sums, count)

  return sharded_transforms.ShardedGradientTransformation(
    init=init, update=update, init_partition_spec=init_partition_spec
  )


class ShardedStaticAccumulator(BaseOptimizer):
  """Applies another optimizer to the mean gradient of several batches.

  Gradients of single batches are clipped by the limits of this optimizer.
  Regularizers, decoupled weight decay and averaging of this optimizer also act
  on every batch, and their learning rate counts batches. Those of
  `optimizer_tpl` are ignored with a warning; a `weight_decay` in its update
  rule acts once per update. The learning rate is by default that of
  `optimizer_tpl`; its schedule counts the updates.
  """

  # The optimizer of the mean gradient; required.
  optimizer_tpl: pax_fiddle.Config[BaseOptimizer] | None = None
  # Number of batches per update.
  num_sub_batches: int = value_domains.field(1, ge=1)
  # See `sharded_static_accumulation`.
  accumulation_use_cond_op: bool = False

  def __post_init__(self) -> None:
    if self.optimizer_tpl is None:
      raise ValueError(
        'ShardedStaticAccumulator.optimizer_tpl is not set; give it the Config'
        ' of an optimizer'
      )
    if self.num_sub_batches < 1:
      raise ValueError(
        'ShardedStaticAccumulator.num_sub_batches must be at least 1, got'
        f' {self.num_sub_batches}'
      )
    base = self.optimizer_tpl.clone()
    if base.lr_schedule is None:
      base.lr_schedule = self.lr_schedule
    elif self.lr_schedule is None:
      self.lr_schedule = base.lr_schedule
    if not self.learning_rate:
      self.learning_rate = base.learning_rate
    self._base_optimizer = base.Instantiate()
    super().__post_init__()
    self._warn_of_ignored_fields()

  @property
  def base_optimizer(self) -> BaseOptimizer:
    """The optimizer of the mean gradient."""
    return self._base_optimizer

  def _warn_of_ignored_fields(self) -> None:
    base = self._base_optimizer
    ignored = {
      field: value
      for field in _FIELDS_OF_THE_CHAIN
      if (value := getattr(base, field, None))
    }
    if ignored:
      logging.warning(
        'ShardedStaticAccumulator ignores %s of its optimizer_tpl; set them on'
        ' the accumulator, where they act on every batch',
        ignored,
      )

  def _get_raw_grad_transformation(
    self, learning_rate_fn: sharded_transforms.LearningRateFn
  ) -> sharded_transforms.GradientTransformation:
    return sharded_static_accumulation(
      self.num_sub_batches,
      self.base_optimizer._update_rule(
        learning_rate_fn, self._var_weight_hparams
      ),
      self.accumulation_use_cond_op,
    )


def _state(base_state: Any, accumulated_update: Any, count: Any) -> NestedMap:
  return NestedMap(
    base_state=base_state, accumulated_update=accumulated_update, count=count
  )


def _cond(is_due: JTensor, compute: Callable[[], Any], otherwise: Any) -> Any:
  return jax.lax.cond(is_due, compute, lambda: otherwise)


def _zeros(
  tree: Nested[JTensor], dtype: jnp.dtype | None = None
) -> Nested[JTensor]:
  return jax.tree.map(lambda x: jnp.zeros_like(x, dtype), tree)
