# SPDX-License-Identifier: Apache-2.0
"""Shampoo as a gradient transformation.

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
from praxis.optimizers.shampoo import (
  matrix_layout,
  preconditioner_groups,
  variable_update,
)
from praxis.optimizers.shampoo.hyperparams import ShampooHyperparams
from praxis.optimizers.shampoo.matrix_layout import MatrixLayout, make_layout
from praxis.pytypes import JTensor, Nested


def distributed_shampoo(
  learning_rate_fn: sharded_transforms.LearningRateFn,
  hyperparams: ShampooHyperparams,
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns Shampoo.

  Each dimension of each block of a variable has a statistic S, an average of
  G Gᵀ, and a preconditioner S^(-1/2k) with k the number of dimensions. The
  update is the gradient times all its preconditioners, scaled to the norm of
  the grafting optimizer's update. Before `start_preconditioning_step` it is the
  update of the grafting optimizer.
  """
  return sharded_transforms.ShardedGradientTransformation(
    init=functools.partial(_init, hyperparams),
    update=functools.partial(_update, hyperparams, learning_rate_fn),
    init_partition_spec=functools.partial(_partition_spec, hyperparams),
  )


def _init(
  hyperparams: ShampooHyperparams, params: Nested[JTensor]
) -> sharded_transforms.State:
  leaves, tree = jax.tree.flatten(params)
  layout = make_layout(hyperparams, [w.shape for w in leaves])
  statistics = preconditioner_groups.identities(
    layout, hyperparams.matrix_epsilon
  )
  preconditioners = preconditioner_groups.identity_preconditioners(
    hyperparams, layout
  )
  matrices = [
    preconditioner_groups.store(groups, hyperparams)
    for groups in (statistics, preconditioners)
  ]
  slots = [variable_update.init_slot(hyperparams, w) for w in leaves]
  summaries = _error_summaries(hyperparams, layout, tree, None)
  return _pack(tree, jnp.zeros([], jnp.int32), matrices, slots, summaries)


def _update(
  hyperparams: ShampooHyperparams,
  learning_rate_fn: sharded_transforms.LearningRateFn,
  grads: Nested[JTensor],
  state: sharded_transforms.State,
  params: Nested[JTensor] | None = None,
) -> tuple[Nested[JTensor], sharded_transforms.State]:
  if params is None:
    raise ValueError('Shampoo needs the variables; pass params to update')
  tree: Any
  leaves, tree = jax.tree.flatten(grads)
  weights = tree.flatten_up_to(params)
  layout = make_layout(hyperparams, [w.shape for w in weights])
  float_grads = [g.astype(jnp.float32) for g in leaves]
  statistics = _statistics(hyperparams, layout, state, float_grads)
  preconditioners, summaries = _preconditioners(
    hyperparams, layout, tree, state, statistics
  )
  loaded = preconditioner_groups.load(
    state.preconditioners if hyperparams.sharded else preconditioners
  )
  step_params = variable_update.StepParams(
    learning_rate_fn(state.count),
    state.count >= hyperparams.start_preconditioning_step,
  )
  updates, slots = [], []
  for i, (g, w, slot) in enumerate(
    zip(float_grads, weights, _unpack(tree, state), strict=True)
  ):
    direction = preconditioner_groups.precondition(layout, loaded, i, g)
    new, slot = variable_update.update(
      hyperparams, g, w, direction, slot, step_params
    )
    updates.append(new.astype(leaves[i].dtype))
    slots.append(slot)
  matrices = [statistics, preconditioners]
  state = _pack(tree, state.count + 1, matrices, slots, summaries)
  return tree.unflatten(updates), state


def _statistics(
  hyperparams: ShampooHyperparams,
  layout: MatrixLayout,
  state: sharded_transforms.State,
  grads: list[JTensor],
) -> NestedMap:
  def compute() -> NestedMap:
    old = preconditioner_groups.load(state.statistics)
    new = preconditioner_groups.updated_statistics(
      hyperparams, layout, old, grads
    )
    return preconditioner_groups.store(new, hyperparams)

  if hyperparams.statistics_compute_steps == 1:
    return compute()
  due = state.count % hyperparams.statistics_compute_steps == 0
  return conditional_step.run_if(due, compute, state.statistics)


def _preconditioners(
  hyperparams: ShampooHyperparams,
  layout: MatrixLayout,
  tree: Any,
  state: sharded_transforms.State,
  statistics: NestedMap,
) -> tuple[NestedMap, NestedMap]:
  """Returns (preconditioners, summaries of root errors)."""

  def compute() -> tuple[NestedMap, NestedMap]:
    new, errors = preconditioner_groups.updated_preconditioners(
      hyperparams,
      layout,
      preconditioner_groups.load(statistics),
      preconditioner_groups.load(state.preconditioners),
    )
    return preconditioner_groups.store(new, hyperparams), _error_summaries(
      hyperparams, layout, tree, errors
    )

  if hyperparams.preconditioning_compute_steps == 1:
    return compute()
  due = state.count % hyperparams.preconditioning_compute_steps == 0
  return conditional_step.run_if(
    due, compute, (state.preconditioners, state.summaries)
  )


def _error_summaries(
  hyperparams: ShampooHyperparams,
  layout: MatrixLayout,
  tree: Any,
  errors: dict[str, Float[Array, ' K']] | None,
) -> NestedMap:
  """Returns the root errors of each variable; None: 0."""
  if not hyperparams.summarize_training_metrics:
    return NestedMap()
  if errors is None:
    errors = {key: jnp.zeros(n) for key, (n, _, _) in layout.groups.items()}
  variable_errors = [
    jnp.stack(preconditioner_groups.gather(layout, errors, i))
    if indices
    else masked_trees.BpropMaskedNode()
    for i, indices in enumerate(layout.indices)
  ]
  return NestedMap(inverse_pth_root_errors=tree.unflatten(variable_errors))


def _partition_spec(
  hyperparams: ShampooHyperparams, hparams: Nested[base_layer.WeightHParams]
) -> sharded_transforms.State:
  """Returns the declarations of the state's arrays."""
  sharded_transforms.check_not_stacked('Shampoo', hparams)
  leaves, tree = jax.tree.flatten(hparams)
  shapes = jax.eval_shape(
    functools.partial(_init, hyperparams),
    jax.tree.unflatten(
      tree, [jax.ShapeDtypeStruct(tuple(hp.shape), hp.dtype) for hp in leaves]
    ),
  )

  def matrix(x: jax.ShapeDtypeStruct) -> base_layer.WeightHParams:
    spec = sharded_transforms.replicated(x.shape, x.dtype)
    if hyperparams.sharded and len(x.shape) == 3:
      spec.tensor_split_dims_mapping = matrix_layout.dividing_axes(
        hyperparams, hyperparams.mapping, x.shape
      )
      spec.mesh_shape = hyperparams.mesh_shape
    return spec

  def like_variable(hp: base_layer.WeightHParams, slot_field: Any) -> Any:
    # Scales of integers lack the first dimension.
    def declare(x: jax.ShapeDtypeStruct) -> base_layer.WeightHParams:
      keep = range(len(hp.shape) - len(x.shape), len(hp.shape))
      return sharded_transforms.like(hp, keep=keep, dtype=x.dtype)

    return jax.tree.map(declare, slot_field)

  replicated = jax.tree.map(
    lambda x: sharded_transforms.replicated(x.shape, x.dtype), shapes
  )
  slots = [
    variable_update.Slot(*(like_variable(hp, field) for field in slot))
    for hp, slot in zip(leaves, _unpack(tree, shapes), strict=True)
  ]
  matrices = [
    jax.tree.map(matrix, group)
    for group in (shapes.statistics, shapes.preconditioners)
  ]
  return _pack(tree, replicated.count, matrices, slots, replicated.summaries)


def _pack(
  tree: Any,
  count: Any,
  matrices: list[NestedMap],
  slots: list[variable_update.Slot],
  summaries: NestedMap,
) -> NestedMap:
  statistics, preconditioners = matrices
  columns = zip(*slots, strict=True) if slots else ((), (), ())
  squares, diagonal_momentum, momentum = map(tree.unflatten, columns)
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
  columns = [tree.flatten_up_to(state[name]) for name in names]
  return [variable_update.Slot(*slot) for slot in zip(*columns, strict=True)]
