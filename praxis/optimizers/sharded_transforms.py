# SPDX-License-Identifier: Apache-2.0
"""Gradient transformations that declare the sharding of their state.

A transformation is three pure functions: `init(params) -> state`,
`update(updates, state, params) -> (updates, state)` as in Optax, and
`init_partition_spec(var_weight_hparams)`, which declares every array of the
state by `WeightHParams`, as a layer declares its weights.

Learners write the arrays under the key `summaries` of a state as summaries. The
update itself cannot: it may be vmapped or skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from praxis import base_layer, py_utils
from praxis.nested_map import NestedMap
from praxis.optimizers import masked_trees
from praxis.pytypes import JTensor, Nested

# Any pytree of arrays.
State = Any
# Maps a step to the positive learning rate.
LearningRateFn = Callable[[Int[Array, '']], Float[Array, '']]


class GradientTransformation(Protocol):
  """The interface of Optax's transformations."""

  @property
  def init(self) -> Callable[[Nested[JTensor]], State]:
    """Returns the state before the first step."""

  @property
  def update(self) -> Callable[..., tuple[Nested[JTensor], State]]:
    """Maps (updates, state, params) to (updates, state)."""


# Maps a tree of the variables' WeightHParams to that of the state.
TransformInitPartitionSpecFn = Callable[
  [Nested[base_layer.WeightHParams]], State
]


@dataclasses.dataclass(frozen=True)
class ShardedGradientTransformation:
  """An Optax transformation that also declares the sharding of its state."""

  # Returns the state before the first step.
  init: Callable[[Nested[JTensor]], State]
  # Maps (updates, state, params) to (updates, state).
  update: Callable[..., tuple[Nested[JTensor], State]]
  init_partition_spec: TransformInitPartitionSpecFn


GeneralGradientTransformation = (
  GradientTransformation | ShardedGradientTransformation
)


def sharded(
  init: Callable[[Nested[JTensor]], State],
  update: Callable[..., tuple[Nested[JTensor], State]],
) -> ShardedGradientTransformation:
  """Returns a transformation whose state `partition_params` declares."""

  def init_partition_spec(hparams: Nested[base_layer.WeightHParams]) -> State:
    shapes = jax.tree.map(
      lambda hp: jax.ShapeDtypeStruct(
        tuple(hp.full_shape), hp.dtype or jnp.float32
      ),
      hparams,
    )
    return partition_params(tx, hparams, jax.eval_shape(init, shapes))

  tx = ShardedGradientTransformation(
    init=init, update=update, init_partition_spec=init_partition_spec
  )
  return tx


def as_sharded(
  tx: GeneralGradientTransformation,
) -> ShardedGradientTransformation:
  """Returns `tx`, converted if it is an Optax transformation."""
  # The class may be the user's own: only its three functions are called.
  if hasattr(tx, 'init_partition_spec'):
    return cast(ShardedGradientTransformation, tx)
  return sharded(tx.init, tx.update)


def sharded_chain(
  *txs: GeneralGradientTransformation,
) -> ShardedGradientTransformation:
  """Returns the composition of transformations; its state is a tuple."""
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
  """Returns a transformation whose only state is the number of steps."""

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
  """Returns the initial state of `counting`."""
  return NestedMap(count=jnp.zeros([], jnp.int32))


def count_init_partition_spec_fn(
  var_hparams: Nested[base_layer.WeightHParams],
) -> NestedMap:
  """Returns the declaration of the state of `counting`."""
  del var_hparams
  return NestedMap(count=replicated([], jnp.int32))


def masked_transformation(
  inner: GradientTransformation | ShardedGradientTransformation,
  mask: Nested[bool] | Callable[[Nested[Any]], Nested[bool]],
) -> ShardedGradientTransformation:
  """Applies `inner` to the variables in `mask`; other updates are unchanged.

  The state is that of `inner`.

  Args:
    inner: the transformation.
    mask: a tree of bools, or a function of a tree like the variables.
  """
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


def sharded_masked(
  inner: GradientTransformation | ShardedGradientTransformation,
  mask: Nested[bool] | Callable[[Nested[Any]], Nested[bool]],
  use_custom_masked: bool = False,
) -> ShardedGradientTransformation:
  """Returns `optax.masked` with declarations of the state.

  Args:
    inner: the transformation.
    mask: a tree of bools, or a function of a tree like the variables.
    use_custom_masked: ignored.

  Returns:
    A transformation whose state is `optax.MaskedState(inner_state)`.
  """
  del use_custom_masked
  tx = masked_transformation(inner, mask)

  def update(
    updates: Nested[JTensor],
    state: optax.MaskedState,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], optax.MaskedState]:
    updates, inner_state = tx.update(updates, state.inner_state, params)
    return updates, optax.MaskedState(inner_state)

  return ShardedGradientTransformation(
    init=lambda params: optax.MaskedState(tx.init(params)),
    update=update,
    init_partition_spec=lambda hparams: optax.MaskedState(
      tx.init_partition_spec(hparams)
    ),
  )


def partition_params(
  grad_tx: GradientTransformation,
  var_weight_hparams: Nested[base_layer.WeightHParams] | None,
  opt_states: State,
) -> State:
  """Returns the declarations of the arrays of a state.

  An array whose path ends with the path of a variable of the same shape is
  sharded like the variable. Other arrays are replicated.

  Args:
    grad_tx: Unused.
    var_weight_hparams: The WeightHParams of the variables; leaves of another
      type, such as arrays, are returned as they are.
    opt_states: The state.
  """
  del grad_tx
  variables = jax.tree_util.tree_flatten_with_path(var_weight_hparams)[0]
  by_path = {tuple(map(_key_name, path)): hp for path, hp in variables}

  def describe(path: Any, leaf: Any) -> Any:
    names = tuple(map(_key_name, path))
    # A bare variable has an empty path.
    for start in range(len(names) + 1):
      declaration = by_path.get(names[start:])
      if isinstance(declaration, base_layer.WeightHParams):
        if tuple(declaration.full_shape) == leaf.shape:
          return like(declaration, dtype=leaf.dtype)
      elif declaration is not None and declaration.shape == leaf.shape:
        return declaration
    return replicated(leaf.shape, leaf.dtype)

  return jax.tree_util.tree_map_with_path(describe, opt_states)


def check_not_stacked(
  optimizer: str, hparams: Nested[base_layer.WeightHParams]
) -> None:
  """Checks that no variable has a repeat prefix.

  Args:
    optimizer: the name of the optimizer, which takes one layer at a time.
    hparams: the WeightHParams of its variables.

  Raises:
    ValueError: a variable is a stack of layers.
  """
  for name, hp in py_utils.tree_paths(hparams):
    if hp.repeat_prefix:
      raise ValueError(
        f'{optimizer} got the stacked variable {name} (repeat_prefix'
        f' {hp.repeat_prefix}); set Learner.vectorize_on_repeat_prefix=True'
      )


def replicated(shape: Sequence[int], dtype: Any) -> base_layer.WeightHParams:
  """Returns the declaration of a replicated array."""
  return base_layer.WeightHParams(
    shape=shape,
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
  """Returns the declaration of an array that is sharded like its variable.

  Args:
    hparams: the declaration of the variable.
    keep: the dimensions of the variable that the array has; None: all.
    dtype: the dtype of the array.
  """
  shape, mapping = hparams.shape, hparams.tensor_split_dims_mapping
  if keep is not None:
    shape = [shape[i] for i in keep]
    mapping = mapping and [mapping[i] for i in keep]
  return dataclasses.replace(
    hparams,
    shape=shape,
    dtype=dtype,
    init=base_layer.WeightInit.Constant(0),
    collections=[],
    tensor_split_dims_mapping=mapping,
    fan_in_axes=None,
    fan_out_axes=None,
    matrix_axes=None,
  )


def _key_name(key: Any) -> str:
  return jax.tree_util.keystr((key,), simple=True)
