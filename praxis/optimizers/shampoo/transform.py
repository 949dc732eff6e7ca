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
from praxis.optimizers import conditional, masking, transforms
from praxis.optimizers.shampoo import matrices, step
from praxis.optimizers.shampoo.rule import (
  Plan,
  ShampooRule,
  fitting,
  make_plan,
)
from praxis.pytypes import JTensor, Nested


def distributed_shampoo(
  learning_rate_fn: transforms.LearningRateFn, rule: ShampooRule
) -> transforms.ShardedGradientTransformation:
  """Returns Shampoo.

  Each dimension of each block of a variable has a statistic S, an average of
  G Gᵀ, and a preconditioner S^(-1/2k), k the number of dimensions. The update
  is the gradient multiplied by all its preconditioners, in the size of a
  simpler optimizer's; until `start_preconditioning_step` it is that one's.
  """
  return transforms.ShardedGradientTransformation(
    init=functools.partial(_init, rule),
    update=functools.partial(_update, rule, learning_rate_fn),
    init_partition_spec=functools.partial(_partition_spec, rule),
  )


def _init(rule: ShampooRule, params: Nested[JTensor]) -> transforms.State:
  leaves, tree = jax.tree.flatten(params)
  plan = make_plan(rule, [w.shape for w in leaves])
  statistics = matrices.identities(plan, rule.matrix_epsilon)
  preconditioners = matrices.first_preconditioners(rule, plan)
  kept = [matrices.store(x, rule) for x in (statistics, preconditioners)]
  slots = [step.init_slot(rule, w) for w in leaves]
  shown = _errors_of(rule, plan, tree, None)
  return _pack(tree, jnp.zeros([], jnp.int32), kept, slots, shown)


def _update(
  rule: ShampooRule,
  learning_rate_fn: transforms.LearningRateFn,
  grads: Nested[JTensor],
  state: transforms.State,
  params: Nested[JTensor] | None = None,
) -> tuple[Nested[JTensor], transforms.State]:
  if params is None:
    raise ValueError('Shampoo needs the variables; pass params to update')
  leaves, tree = jax.tree.flatten(grads)
  weights = tree.flatten_up_to(params)
  plan = make_plan(rule, [w.shape for w in weights])
  precise = [g.astype(jnp.float32) for g in leaves]
  statistics = _statistics(rule, plan, state, precise)
  preconditioners, shown = _preconditioners(rule, plan, tree, state, statistics)
  used = matrices.load(
    state.preconditioners if rule.sharded else preconditioners
  )
  now = step.Now(
    learning_rate_fn(state.count),
    state.count >= rule.start_preconditioning_step,
  )
  updates, slots = [], []
  for i, (g, w, slot) in enumerate(
    zip(precise, weights, _unpack(tree, state), strict=True)
  ):
    cut = plan.cuts[i]
    direction = matrices.precondition(plan, used, i, g) if cut else None
    change, slot = step.update(rule, g, w, direction, slot, now)
    updates.append(change.astype(leaves[i].dtype))
    slots.append(slot)
  kept = [statistics, preconditioners]
  state = _pack(tree, state.count + 1, kept, slots, shown)
  return tree.unflatten(updates), state


def _statistics(
  rule: ShampooRule, plan: Plan, state: transforms.State, grads: list[JTensor]
) -> NestedMap:
  def compute() -> NestedMap:
    old = matrices.load(state.statistics)
    new = matrices.updated_statistics(rule, plan, old, grads)
    return matrices.store(new, rule)

  if rule.statistics_compute_steps == 1:
    return compute()
  due = state.count % rule.statistics_compute_steps == 0
  return conditional.run_if(due, compute, state.statistics)


def _preconditioners(
  rule: ShampooRule,
  plan: Plan,
  tree: Any,
  state: transforms.State,
  statistics: NestedMap,
) -> tuple[NestedMap, NestedMap]:
  """Returns (the preconditioners, the errors to be shown)."""

  def compute() -> tuple[NestedMap, NestedMap]:
    new, errors = matrices.updated_preconditioners(
      rule,
      plan,
      matrices.load(statistics),
      matrices.load(state.preconditioners),
    )
    return matrices.store(new, rule), _errors_of(rule, plan, tree, errors)

  if rule.preconditioning_compute_steps == 1:
    return compute()
  due = state.count % rule.preconditioning_compute_steps == 0
  return conditional.run_if(
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
    jnp.stack(matrices.gather(plan, errors, i))
    if places
    else masking.BpropMaskedNode()
    for i, places in enumerate(plan.places)
  ]
  return NestedMap(inverse_pth_root_errors=tree.unflatten(mine))


def _partition_spec(
  rule: ShampooRule, hparams: Nested[base_layer.WeightHParams]
) -> transforms.State:
  """Returns the descriptions of the state's arrays."""
  leaves, tree = jax.tree.flatten(hparams)
  shapes = jax.eval_shape(
    functools.partial(_init, rule),
    tree.unflatten(
      [jax.ShapeDtypeStruct(tuple(hp.shape), hp.dtype) for hp in leaves]
    ),
  )

  def matrix(x: jax.ShapeDtypeStruct) -> base_layer.WeightHParams:
    spec = transforms.replicated(x.shape, x.dtype)
    if rule.sharded and len(x.shape) == 3:
      spec.tensor_split_dims_mapping = fitting(rule, rule.mapping, x.shape)
      spec.mesh_shape = rule.mesh_shape
    return spec

  def local(hp: base_layer.WeightHParams, part: Any) -> Any:
    # Scales of integers lack the first dimension.
    def describe(x: jax.ShapeDtypeStruct) -> base_layer.WeightHParams:
      keep = range(len(hp.shape) - len(x.shape), len(hp.shape))
      return transforms.like(hp, keep=keep, dtype=x.dtype)

    return jax.tree.map(describe, part)

  plain = jax.tree.map(
    lambda x: transforms.replicated(x.shape, x.dtype), shapes
  )
  slots = [
    step.Slot(*(local(hp, part) for part in slot))
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
  slots: list[step.Slot],
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


def _unpack(tree: Any, state: transforms.State) -> list[step.Slot]:
  names = ('diagonal_statistics', 'diagonal_momentum', 'momentum')
  parts = [tree.flatten_up_to(state[name]) for name in names]
  return [step.Slot(*slot) for slot in zip(*parts, strict=True)]
