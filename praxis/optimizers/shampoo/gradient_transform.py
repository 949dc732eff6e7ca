# SPDX-License-Identifier: Apache-2.0
"""The Shampoo transformation.

References:
  Gupta et al., https://arxiv.org/abs/1802.09568
  Anil et al., https://arxiv.org/abs/2002.09018
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.nested_map import NestedMap
from praxis.optimizers import conditional_step, masked_trees, sharded_transforms
from praxis.optimizers.shampoo import preconditioner_groups, variable_update
from praxis.optimizers.shampoo.hyperparams import (
  Plan,
  ShampooRule,
  fitting,
  make_plan,
)
from praxis.pytypes import JTensor, Nested


def distributed_shampoo(
  learning_rate_fn: sharded_transforms.LearningRateFn, rule: ShampooRule
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns Shampoo.

  Each dimension of each block of a variable has a statistic S, an average of
  G Gᵀ, and a preconditioner S^(-1/2k), k the number of dimensions. The update
  is the gradient multiplied by all its preconditioners, in the size of a
  simpler optimizer's; until `start_preconditioning_step` it is that one's.
  """
  return sharded_transforms.ShardedGradientTransformation(
    init=functools.partial(_init, rule),
    update=functools.partial(_update, rule, learning_rate_fn),
    init_partition_spec=functools.partial(_partition_spec, rule),
  )


def _init(
  rule: ShampooRule, params: Nested[JTensor]
) -> sharded_transforms.State:
  leaves, tree = jax.tree.flatten(params)
  plan = make_plan(rule, [w.shape for w in leaves])
  statistics = preconditioner_groups.identities(plan, rule.matrix_epsilon)
  preconditioners = preconditioner_groups.first_preconditioners(rule, plan)
  kept = [
    preconditioner_groups.store(x, rule) for x in (statistics, preconditioners)
  ]
  slots = [variable_update.init_slot(rule, w) for w in leaves]
  shown = _errors_of(rule, plan, tree, None)
  return _pack(tree, jnp.zeros([], jnp.int32), kept, slots, shown)


def _update(
  rule: ShampooRule,
  learning_rate_fn: sharded_transforms.LearningRateFn,
  grads: Nested[JTensor],
  state: sharded_transforms.State,
  params: Nested[JTensor] | None = None,
) -> tuple[Nested[JTensor], sharded_transforms.State]:
  if params is None:
    raise ValueError('Shampoo needs the variables; pass params to update')
  leaves, tree = jax.tree.flatten(grads)
  weights = tree.flatten_up_to(params)
  plan = make_plan(rule, [w.shape for w in weights])
  precise = [g.astype(jnp.float32) for g in leaves]
  statistics = _statistics(rule, plan, state, precise)
  preconditioners, shown = _preconditioners(rule, plan, tree, state, statistics)
  used = preconditioner_groups.load(
    state.preconditioners if rule.sharded else preconditioners
  )
  now = variable_update.Now(
    learning_rate_fn(state.count),
    state.count >= rule.start_preconditioning_step,
  )
  updates, slots = [], []
  for i, (g, w, slot) in enumerate(
    zip(precise, weights, _unpack(tree, state), strict=True)
  ):
    cut = plan.cuts[i]
    direction = (
      preconditioner_groups.precondition(plan, used, i, g) if cut else None
    )
    change, slot = variable_update.update(rule, g, w, direction, slot, now)
    updates.append(change.astype(leaves[i].dtype))
    slots.append(slot)
  kept = [statistics, preconditioners]
  state = _pack(tree, state.count + 1, kept, slots, shown)
  return tree.unflatten(updates), state


def _statistics(
  rule: ShampooRule,
  plan: Plan,
  state: sharded_transforms.State,
  grads: list[JTensor],
) -> NestedMap:
  def compute() -> NestedMap:
    old = preconditioner_groups.load(state.statistics)
    new = preconditioner_groups.updated_statistics(rule, plan, old, grads)
    return preconditioner_groups.store(new, rule)

  if rule.statistics_compute_steps == 1:
    return compute()
  due = state.count % rule.statistics_compute_steps == 0
  return conditional_step.run_if(due, compute, state.statistics)


def _preconditioners(
  rule: ShampooRule,
  plan: Plan,
  tree: Any,
  state: sharded_transforms.State,
  statistics: NestedMap,
) -> tuple[NestedMap, NestedMap]:
  """Returns (the preconditioners, the errors to be shown)."""

  def compute() -> tuple[NestedMap, NestedMap]:
    new, errors = preconditioner_groups.updated_preconditioners(
      rule,
      plan,
      preconditioner_groups.load(statistics),
      preconditioner_groups.load(state.preconditioners),
    )
    return preconditioner_groups.store(new, rule), _errors_of(
      rule, plan, tree, errors
    )

  if rule.preconditioning_compute_steps == 1:
    return compute()
  due = state.count % rule.preconditioning_compute_steps == 0
  return conditional_step.run_if(
    due, compute, (state.preconditioners, state.summaries)
  )


def _errors_of(
  rule: ShampooRule,
  plan: Plan,
  tree: Any,
  errors: dict[str, Float[Array, ' K']] | None,
) -> NestedMap:
  """Returns what is to be shown: the errors of each variable, at first 0."""
  if not rule.summarize_training_metrics:
    return NestedMap()
  if errors is None:
    errors = {key: jnp.zeros(n) for key, (n, _, _) in plan.groups.items()}
  mine = [
    jnp.stack(preconditioner_groups.gather(plan, errors, i))
    if places
    else masked_trees.BpropMaskedNode()
    for i, places in enumerate(plan.places)
  ]
  return NestedMap(inverse_pth_root_errors=tree.unflatten(mine))


def _partition_spec(
  rule: ShampooRule, hparams: Nested[base_layer.WeightHParams]
) -> sharded_transforms.State:
  """Returns the descriptions of the state's arrays."""
  leaves, tree = jax.tree.flatten(hparams)
  shapes = jax.eval_shape(
    functools.partial(_init, rule),
    tree.unflatten(
      [jax.ShapeDtypeStruct(tuple(hp.shape), hp.dtype) for hp in leaves]
    ),
  )

  def matrix(x: jax.ShapeDtypeStruct) -> base_layer.WeightHParams:
    spec = sharded_transforms.replicated(x.shape, x.dtype)
    if rule.sharded and len(x.shape) == 3:
      spec.tensor_split_dims_mapping = fitting(rule, rule.mapping, x.shape)
      spec.mesh_shape = rule.mesh_shape
    return spec

  def local(hp: base_layer.WeightHParams, part: Any) -> Any:
    # Scales of integers lack the first dimension.
    def describe(x: jax.ShapeDtypeStruct) -> base_layer.WeightHParams:
      keep = range(len(hp.shape) - len(x.shape), len(hp.shape))
      return sharded_transforms.like(hp, keep=keep, dtype=x.dtype)

    return jax.tree.map(describe, part)

  plain = jax.tree.map(
    lambda x: sharded_transforms.replicated(x.shape, x.dtype), shapes
  )
  slots = [
    variable_update.Slot(*(local(hp, part) for part in slot))
    for hp, slot in zip(leaves, _unpack(tree, shapes), strict=True)
  ]
  kept = [
    jax.tree.map(matrix, part)
    for part in (shapes.statistics, shapes.preconditioners)
  ]
  return _pack(tree, plain.count, kept, slots, plain.summaries)


def _pack(
  tree: Any,
  count: Any,
  kept: list[NestedMap],
  slots: list[variable_update.Slot],
  summaries: NestedMap,
) -> NestedMap:
  statistics, preconditioners = kept
  parts = zip(*slots, strict=True) if slots else ((), (), ())
  squares, diagonal_momentum, momentum = (tree.unflatten(p) for p in parts)
  return NestedMap(
    count=count,
    statistics=statistics,
    preconditioners=preconditioners,
    diagonal_statistics=squares,
    diagonal_momentum=diagonal_momentum,
    momentum=momentum,
    summaries=summaries,
  )


def _unpack(
  tree: Any, state: sharded_transforms.State
) -> list[variable_update.Slot]:
  names = ('diagonal_statistics', 'diagonal_momentum', 'momentum')
  parts = [tree.flatten_up_to(state[name]) for name in names]
  return [variable_update.Slot(*slot) for slot in zip(*parts, strict=True)]
