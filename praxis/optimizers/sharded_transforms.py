# SPDX-License-Identifier: Apache-2.0
"""Gradient transformations that know how their state is sharded.

A transformation is three pure functions: `init(params) -> state`,
`update(updates, state, params) -> (updates, state)` as in Optax, and
`init_partition_spec(var_weight_hparams)`, which describes every array of the
state by `WeightHParams`, as a layer describes its weights.

What a state keeps under a key `summaries`, small arrays in any tree, learners
record by their paths: an update may run vmapped, or not at all, and so cannot
record anything itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer
from praxis.nested_map import NestedMap
from praxis.optimizers import masked_trees
from praxis.pytypes import JTensor, Nested

# A state is any tree of arrays; its structure is the transformation's own.
State = Any
# The learning rate at a step, positive.
LearningRateFn = Callable[[Int[Array, '']], Float[Array, '']]


class GradientTransformation(Protocol):
  """What Optax calls a transformation."""

  init: Callable[[Nested[JTensor]], State]
  update: Callable[..., tuple[Nested[JTensor], State]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedGradientTransformation:
  """An Optax transformation that also tells the sharding of its state."""

  # Returns the state before the first step.
  init: Callable[[Nested[JTensor]], State]
  # Maps (updates, state, params) to (updates, state).
  update: Callable[..., tuple[Nested[JTensor], State]]
  # Maps a tree of the variables' WeightHParams to one like the state's.
  init_partition_spec: Callable[[Nested[base_layer.WeightHParams]], State]


def sharded(
  init: Callable[[Nested[JTensor]], State],
  update: Callable[..., tuple[Nested[JTensor], State]],
) -> ShardedGradientTransformation:
  """Returns a transformation whose state `partition_params` describes."""

  def init_partition_spec(hparams: Nested[base_layer.WeightHParams]) -> State:
    shapes = jax.tree.map(
      lambda hp: jax.ShapeDtypeStruct(tuple(hp.full_shape), hp.dtype), hparams
    )
    return partition_params(tx, hparams, jax.eval_shape(init, shapes))

  tx = ShardedGradientTransformation(
    init=init, update=update, init_partition_spec=init_partition_spec
  )
  return tx


def as_sharded(
  tx: GradientTransformation | ShardedGradientTransformation,
) -> ShardedGradientTransformation:
  """Returns `tx`, made sharded if it is a plain Optax transformation."""
  if hasattr(tx, 'init_partition_spec'):
    return tx
  return sharded(tx.init, tx.update)


def sharded_chain(
  *txs: GradientTransformation | ShardedGradientTransformation,
) -> ShardedGradientTransformation:
  """Returns the transformations in a row; the state is the tuple of theirs."""
  chain = tuple(as_sharded(tx) for tx in txs)

  def init(params: Nested[JTensor]) -> State:
    return tuple(tx.init(params) for tx in chain)

  def update(
    updates: Nested[JTensor],
    state: State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], State]:
    if len(state) != len(chain):
      raise ValueError(
        f'the chain of {len(chain)} transformations got a state of'
        f' {len(state)}; restore or init it with the same optimizer'
      )
    new_state = []
    for tx, old in zip(chain, state, strict=True):
      updates, new = tx.update(updates, old, params)
      new_state.append(new)
    return updates, tuple(new_state)

  def init_partition_spec(hparams: Nested[base_layer.WeightHParams]) -> State:
    return tuple(tx.init_partition_spec(hparams) for tx in chain)

  return ShardedGradientTransformation(
    init=init, update=update, init_partition_spec=init_partition_spec
  )


def counting(
  update: Callable[
    [Nested[JTensor], Int[Array, ''], Nested[JTensor] | None], Nested[JTensor]
  ],
) -> ShardedGradientTransformation:
  """Returns the transformation whose only state is the number of steps."""

  def counted(
    updates: Nested[JTensor],
    state: State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], State]:
    updates = update(updates, state.count, params)
    return updates, NestedMap(count=state.count + 1)

  return ShardedGradientTransformation(
    init=count_init_fn,
    update=counted,
    init_partition_spec=count_init_partition_spec_fn,
  )


def count_init_fn(_: Nested[JTensor]) -> NestedMap:
  """Returns the state that is only a count of steps."""
  return NestedMap(count=jnp.zeros([], jnp.int32))


def count_init_partition_spec_fn(
  var_hparams: Nested[base_layer.WeightHParams],
) -> NestedMap:
  """Returns the description of that state."""
  del var_hparams
  return NestedMap(count=replicated((), jnp.int32))


def sharded_masked(
  inner: GradientTransformation | ShardedGradientTransformation,
  mask: Nested[bool] | Callable[[Nested[Any]], Nested[bool]],
  use_custom_masked: bool = False,
) -> ShardedGradientTransformation:
  """Returns `inner` for the variables in `mask`; other updates pass as is.

  A function makes the mask from a tree of the variables' structure.
  `use_custom_masked` changes nothing: there is one way of masking.
  """
  del use_custom_masked
  tx = as_sharded(inner)

  def masked(tree: Nested[Any]) -> Nested[Any]:
    return masked_trees.mask_tree(tree, mask(tree) if callable(mask) else mask)

  def update(
    updates: Nested[JTensor],
    state: State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], State]:
    if params is not None:
      params = masked(params)
    new, state = tx.update(masked(updates), state, params)
    return masked_trees.merge_tree(new, updates), state

  return ShardedGradientTransformation(
    init=lambda params: tx.init(masked(params)),
    update=update,
    init_partition_spec=lambda hparams: tx.init_partition_spec(masked(hparams)),
  )


def partition_params(
  grad_tx: GradientTransformation,
  var_weight_hparams: Nested[base_layer.WeightHParams] | None,
  opt_states: State,
) -> State:
  """Returns a tree like `opt_states` that describes each of its arrays.

  An array belongs to a variable when its path ends with the variable's path
  and it has the variable's shape; it is then laid out alike. Others are
  replicated.
  """
  del grad_tx  # The states tell.
  variables = jax.tree_util.tree_flatten_with_path(var_weight_hparams)[0]
  by_path = {tuple(map(_key_name, path)): hp for path, hp in variables}

  def describe(path: Any, leaf: Any) -> base_layer.WeightHParams:
    names = tuple(map(_key_name, path))
    for start in range(len(names)):
      hparams = by_path.get(names[start:])
      if hparams is not None and tuple(hparams.full_shape) == leaf.shape:
        return like(hparams, dtype=leaf.dtype)
    return replicated(leaf.shape, leaf.dtype)

  return jax.tree_util.tree_map_with_path(describe, opt_states)


def replicated(shape: tuple[int, ...], dtype: Any) -> base_layer.WeightHParams:
  """Returns the description of an array that every device holds whole."""
  return base_layer.WeightHParams(
    shape=list(shape),
    dtype=dtype,
    init=base_layer.WeightInit.Constant(0),
    tensor_split_dims_mapping=[-1] * len(shape),
  )


def like(
  hparams: base_layer.WeightHParams,
  *,
  keep: Sequence[int] | None = None,
  dtype: Any,
) -> base_layer.WeightHParams:
  """Returns the description of a state array laid out like its variable.

  `keep` names the dimensions of the variable that the array has; None: all.
  """
  if keep is None:
    keep = range(len(hparams.shape))
  mapping = hparams.tensor_split_dims_mapping
  return dataclasses.replace(
    hparams,
    shape=[hparams.shape[i] for i in keep],
    dtype=dtype,
    init=base_layer.WeightInit.Constant(0),
    collections=[],
    tensor_split_dims_mapping=mapping and [mapping[i] for i in keep],
    fan_in_axes=None,
    fan_out_axes=None,
  )


def _key_name(key: Any) -> str:
  return jax.tree_util.keystr((key,), simple=True)
