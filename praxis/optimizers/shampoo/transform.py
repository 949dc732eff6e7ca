# SPDX-License-Identifier: Apache-2.0
"""The Shampoo transformation.

References:
  Gupta et al., https://arxiv.org/abs/1802.09568
  Anil et al., https://arxiv.org/abs/2002.09018
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.nested_map import NestedMap
from praxis.optimizers import conditional, masking, transforms
from praxis.optimizers.shampoo import grafting, matrices, storage
from praxis.optimizers.shampoo.rule import (
  Plan,
  ShampooRule,
  fitting,
  make_plan,
)
from praxis.pytypes import JTensor, Nested


class _Slot(NamedTuple):
  """The state of one variable beside its matrices."""

  # Sums or averages of squared gradients, for grafting.
  squares: Any
  # Momentum of the grafted-on optimizer, and of Shampoo.
  diagonal_momentum: storage.Stored
  momentum: storage.Stored


def distributed_shampoo(
  learning_rate_fn: transforms.LearningRateFn, rule: ShampooRule
) -> transforms.ShardedGradientTransformation:
  """Returns Shampoo.

  Each dimension of each block of a variable has a statistic S, an average of
  G Gᵀ, and a preconditioner S^(-1/2k), k the number of dimensions. The update
  is the gradient multiplied by all its preconditioners, in the size of a
  simpler optimizer's; until `start_preconditioning_step` it is that one's.
  """

  def init(params: Nested[JTensor]) -> transforms.State:
    leaves, tree = jax.tree.flatten(params)
    plan = make_plan(rule, [w.shape for w in leaves])
    return _pack(
      tree,
      jnp.zeros([], jnp.int32),
      [
        matrices.store(matrices.identities(plan, scale), rule)
        for scale in (rule.matrix_epsilon, 1.0)
      ],
      [_init_slot(rule, w) for w in leaves],
      _errors_of(rule, plan, tree, None),
    )

  def update(
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
    preconditioners, shown = _preconditioners(
      rule, plan, tree, state, statistics
    )
    used = state.preconditioners if rule.sharded else preconditioners
    used = matrices.load(used)
    lr = learning_rate_fn(state.count)
    running = state.count >= rule.start_preconditioning_step
    updates, slots = [], []
    for i, (g, w, slot) in enumerate(
      zip(precise, weights, _unpack(tree, state), strict=True)
    ):
      cut = plan.cuts[i]
      direction = matrices.precondition(plan, used, i, g) if cut else None
      step, slot = _step(rule, g, w, direction, slot, lr, running)
      updates.append(step.astype(leaves[i].dtype))
      slots.append(slot)
    kept = [statistics, preconditioners]
    state = _pack(tree, state.count + 1, kept, slots, shown)
    return tree.unflatten(updates), state

  return transforms.ShardedGradientTransformation(
    init=init,
    update=update,
    init_partition_spec=lambda hparams: _partition_spec(rule, hparams, init),
  )


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


def _step(
  rule: ShampooRule,
  g: Float[Array, ...],
  w: JTensor,
  direction: Float[Array, ...] | None,
  slot: _Slot,
  lr: Float[Array, ''],
  running: JTensor,
) -> tuple[Float[Array, ...], _Slot]:
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
  simple = simple if late_lr else simple * lr
  direction = simple if direction is None else direction
  size = jnp.linalg.norm(simple) / (jnp.linalg.norm(direction) + 1e-16)
  direction = direction * size

  decay = rule.weight_decay * w.astype(jnp.float32)
  if not rule.decoupled_weight_decay_from_momentum:
    direction, simple = direction + decay, simple + decay
  new = 1.0 - rule.beta1 if rule.moving_average_for_momentum else 1.0
  momentum = rule.beta1 * storage.load(slot.momentum) + new * direction
  simple_momentum = (
    rule.beta1 * storage.load(slot.diagonal_momentum) + new * simple
  )
  step = jnp.where(running, momentum, simple_momentum)
  if rule.nesterov:
    step = new * jnp.where(running, direction, simple) + rule.beta1 * step
  step = step * lr if late_lr else step
  if rule.decoupled_weight_decay_from_momentum:
    step = step + lr * decay
  dtype = rule.momentum_dtype(w.ndim)
  return -step, _Slot(
    squares,
    storage.store(simple_momentum, dtype),
    storage.store(momentum, dtype),
  )


def _init_slot(rule: ShampooRule, w: JTensor) -> _Slot:
  zeros = jnp.zeros(w.shape, jnp.float32)
  momentum = storage.store(zeros, rule.momentum_dtype(w.ndim))
  squares = zeros if rule.graft_type.has_squares else masking.BpropMaskedNode()
  return _Slot(squares, momentum, momentum)


def _errors_of(
  rule: ShampooRule,
  plan: Plan,
  tree: Any,
  errors: dict[str, Float[Array, ' K']] | None,
) -> NestedMap:
  """Returns what is to be shown: the errors by variable, at first zero."""
  if not rule.summarize_training_metrics:
    return NestedMap()
  if errors is None:
    errors = {key: jnp.zeros(n) for key, (n, _, _) in plan.groups.items()}
  mine = [matrices.gather(plan, errors, i) for i in range(len(plan.places))]
  return NestedMap(inverse_pth_root_errors=tree.unflatten(mine))


def _partition_spec(
  rule: ShampooRule, hparams: Nested[base_layer.WeightHParams], init: Any
) -> transforms.State:
  """Returns the descriptions of the state's arrays."""
  leaves, tree = jax.tree.flatten(hparams)
  shapes = jax.eval_shape(
    init,
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
    _Slot(*(local(hp, part) for part in slot))
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
  slots: list[_Slot],
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


def _unpack(tree: Any, state: transforms.State) -> list[_Slot]:
  names = ('diagonal_statistics', 'diagonal_momentum', 'momentum')
  parts = [tree.flatten_up_to(state[name]) for name in names]
  return [_Slot(*slot) for slot in zip(*parts, strict=True)]
