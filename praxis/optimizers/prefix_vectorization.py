# SPDX-License-Identifier: Apache-2.0
"""Vectorized optimizer updates of stacked layers.

Variables of repeated layers are stacked along leading dimensions, their repeat
prefix. Statistics of an optimizer (an RMS, a factored moment) belong to one
layer. Variables with the same prefix form a group, and the optimizer is vmapped
over the prefix of the group. The state is a NestedMap with one entry per group:
'no_prefix', and for example 'p#4#i-1' for variables that are stacked four times
and replicated (-1) along the stack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from praxis import base_layer
from praxis.optimizers import masked_trees, sharded_transforms
from praxis.pytypes import JTensor, Nested, NestedMap

NO_PREFIX_KEY = 'no_prefix'

_Hparams = Nested[base_layer.WeightHParams]
_MakeTx = Callable[[_Hparams], sharded_transforms.GradientTransformation]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Group:
  """The variables of one prefix and the transformation that updates them."""

  # True for the variables of the group.
  mask: Nested[bool]
  # Sizes of the stacked dimensions, outermost first.
  prefix: tuple[int, ...]
  # Mesh axes that shard the update along these dimensions.
  axes: tuple[Any, ...]
  # The transformation for one layer.
  tx: sharded_transforms.ShardedGradientTransformation


def has_no_prefix(dct: Mapping[str, Any]) -> bool:
  """Whether no variable has a prefix."""
  return set(dct) == {NO_PREFIX_KEY}


def partition_params(
  grad_tx: sharded_transforms.GradientTransformation,
  var_weight_hparams: _Hparams | None,
  opt_states: sharded_transforms.State,
  repeat_prefix_sep: str = '#',
) -> sharded_transforms.State:
  """Returns the declarations of the arrays of a state, grouped or not.

  Arrays that do not belong to a variable are replicated, their prefix too.

  Args:
    grad_tx: the transformation.
    var_weight_hparams: declarations of the variables.
    opt_states: the state.
    repeat_prefix_sep: ignored: key paths match variables in any group.
  """
  del repeat_prefix_sep
  return sharded_transforms.partition_params(
    grad_tx, var_weight_hparams, opt_states
  )


def get_transformations_with_vectorized_repeat_prefix(
  tx: sharded_transforms.GradientTransformation | _MakeTx,
  var_hparams: _Hparams,
  repeat_prefix_sep: str = '#',
  force_prefix_structure: bool = False,
) -> sharded_transforms.ShardedGradientTransformation:
  """Returns one transformation for variables with and without a prefix.

  Args:
    tx: the transformation for the variables of one layer, or a function that
      creates it from their declarations.
    var_hparams: declarations of the variables.
    repeat_prefix_sep: separator in the names of groups.
    force_prefix_structure: whether the state is a NestedMap of groups even if
      no variable is stacked.
  """
  make_tx = tx if callable(tx) else lambda hparams: tx
  groups = _make_groups(make_tx, var_hparams, repeat_prefix_sep)
  if has_no_prefix(groups) and not force_prefix_structure:
    unstacked = sharded_transforms.as_sharded(make_tx(var_hparams))
    return dataclasses.replace(
      unstacked, update=_with_summaries(unstacked.update)
    )

  def init(params: Nested[JTensor]) -> sharded_transforms.State:
    return NestedMap(
      {
        key: _vectorize(group.tx.init, group.prefix, group.axes)(
          masked_trees.mask_tree(params, group.mask)
        )
        for key, group in groups.items()
      }
    )

  def update(
    updates: Nested[JTensor],
    state: sharded_transforms.State,
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], sharded_transforms.State]:
    _check_keys(groups, state)
    new_state = NestedMap()
    for key, group in groups.items():
      update_group = _with_summaries(
        group.tx.update,
        group.prefix,
        group.axes,
      )
      new, new_state[key] = update_group(
        masked_trees.mask_tree(updates, group.mask),
        state[key],
        None if params is None else masked_trees.mask_tree(params, group.mask),
      )
      updates = masked_trees.merge_tree(new, updates)
    return updates, new_state

  def init_partition_spec(hparams: _Hparams) -> sharded_transforms.State:
    return NestedMap(
      {
        key: _group_specs(group, masked_trees.mask_tree(hparams, group.mask))
        for key, group in groups.items()
      }
    )

  return sharded_transforms.ShardedGradientTransformation(
    init=init, update=update, init_partition_spec=init_partition_spec
  )


def group_key(hparams: base_layer.WeightHParams, sep: str) -> str:
  """Returns the name of the group of a variable: 'p#4#i-1' or 'no_prefix'."""
  if not hparams.repeat_prefix:
    return NO_PREFIX_KEY
  fields = ['p', '.'.join(map(str, hparams.repeat_prefix))]
  fields.append(_encode(_prefix_mapping(hparams)))
  optimizer_dims = hparams.repeat_optimizer_dims_mapping or ()
  if any(dim != -1 for dim in _as_tuple(optimizer_dims)):
    fields.append(_encode(optimizer_dims))
  return sep.join(fields)


def _make_groups(
  make_tx: _MakeTx, var_hparams: _Hparams, sep: str
) -> dict[str, _Group]:
  keys = jax.tree.map(lambda hp: group_key(hp, sep), var_hparams)
  by_key = dict(
    zip(jax.tree.leaves(keys), jax.tree.leaves(var_hparams), strict=True)
  )
  groups = {}
  for key in sorted({NO_PREFIX_KEY, *by_key}):
    mask = jax.tree.map(lambda k, key=key: k == key, keys)
    hparams = jax.tree.map(
      _without_prefix, masked_trees.mask_tree(var_hparams, mask)
    )
    first = by_key.get(key)
    prefix = tuple((first and first.repeat_prefix) or ())
    axes = (first and first.repeat_optimizer_dims_mapping) or [None]
    groups[key] = _Group(
      mask=mask,
      prefix=prefix,
      axes=tuple(axes) if len(axes) == len(prefix) else (None,) * len(prefix),
      tx=sharded_transforms.as_sharded(make_tx(hparams)),
    )
  return groups


def _vectorize(
  fn: Callable[..., Any], prefix: tuple[int, ...], axes: tuple[Any, ...]
) -> Callable[..., Any]:
  for size, axis in reversed(list(zip(prefix, axes, strict=True))):
    mesh_axes = axis if isinstance(axis, str | tuple) else None
    fn = jax.vmap(fn, axis_size=size, spmd_axis_name=mesh_axes)
  return fn


def _with_summaries(
  update: Callable[..., Any],
  prefix: tuple[int, ...] = (),
  axes: tuple[Any, ...] = (),
) -> Callable[..., Any]:
  """Returns the vectorized update, whose global summaries name the prefix.

  A summary `u` of a group that is stacked four times is `u.[4]`, with the
  prefix as leading dimensions; without a prefix it is `u.[]`.

  Args:
    update: the update of one layer.
    prefix: sizes of the stacked dimensions.
    axes: mesh axes along these dimensions.
  """

  def update_and_collect(*args: Any) -> tuple[Any, Any, dict[str, JTensor]]:
    with base_layer.JaxContext.new_context():
      updates, state = update(*args)
      return updates, state, dict(base_layer.all_global_summaries())

  def update_and_report(*args: Any) -> tuple[Any, Any]:
    updates, state, summaries = _vectorize(update_and_collect, prefix, axes)(
      *args
    )
    for key, value in summaries.items():
      base_layer.add_global_summary(
        f'{base_layer.trim_summary_type_from_key(key)}.{list(prefix)}',
        value,
        base_layer.get_summary_type_from_key(key),
      )
    return updates, state

  return update_and_report


def _without_prefix(
  hparams: base_layer.WeightHParams,
) -> base_layer.WeightHParams:
  return dataclasses.replace(
    hparams,
    repeat_prefix=None,
    repeat_prefix_split_dims_mapping=None,
    repeat_optimizer_dims_mapping=None,
  )


def _group_specs(group: _Group, hparams: _Hparams) -> sharded_transforms.State:
  """Returns the declarations of a group's state, with its prefix."""
  specs = group.tx.init_partition_spec(jax.tree.map(_without_prefix, hparams))
  if not group.prefix:
    return jax.tree.map(
      lambda spec: dataclasses.replace(
        spec, repeat_prefix=[], repeat_prefix_split_dims_mapping=[]
      ),
      specs,
    )
  first = jax.tree.leaves(hparams)[0]
  mapping = _prefix_mapping(first)
  if first.repeat_optimizer_dims_mapping is not None:
    mapping = first.repeat_optimizer_dims_mapping
  return jax.tree.map(
    lambda spec: dataclasses.replace(
      spec,
      repeat_prefix=list(group.prefix),
      repeat_prefix_split_dims_mapping=list(_as_tuple(mapping)),
      mesh_shape=first.mesh_shape,
    ),
    specs,
  )


def _prefix_mapping(hparams: base_layer.WeightHParams) -> tuple[Any, ...]:
  mapping = hparams.repeat_prefix_split_dims_mapping
  if mapping is None:
    return (-1,) * len(hparams.repeat_prefix or ())
  return _as_tuple(mapping)


def _as_tuple(mapping: Any) -> tuple[Any, ...]:
  if isinstance(mapping, list | tuple):
    return tuple(mapping)
  return (mapping,)


def _encode(mapping: Any) -> str:
  """Returns 'i-1' for -1, 'sdata' for 'data', 'tsdata,smdl' for several."""

  def encode(dim: Any) -> str:
    if dim is None:
      return ''
    if isinstance(dim, int):
      return f'i{dim}'
    if isinstance(dim, str):
      return f's{dim}'
    return 't' + ','.join(map(encode, dim))

  return '.'.join(encode(dim) for dim in _as_tuple(mapping))


def _check_keys(
  groups: dict[str, _Group], state: sharded_transforms.State
) -> None:
  if not isinstance(state, dict) or set(state) != set(groups):
    keys = sorted(state) if isinstance(state, dict) else type(state).__name__
    raise ValueError(
      f'the optimizer state must have the groups {sorted(groups)}, got {keys};'
      ' was Learner.repeat_prefix_sep or the stacking of layers changed?'
    )
