# SPDX-License-Identifier: Apache-2.0
"""Trees and maps as wholes: sizes, splitting, joining, special leaves."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from praxis.nested_map import NestedMap


class BpropMaskedNode(NamedTuple):
  """Stands in a tree for a variable that no gradient is taken of."""


def is_bprop_masked_node(x: Any) -> bool:
  """Whether `x` stands for a variable that no gradient is taken of."""
  return isinstance(x, BpropMaskedNode)


def is_optax_masked_node(x: Any) -> bool:
  """Whether `x` is optax's stand-in for a leaf that is masked out."""
  optax = sys.modules.get('optax')  # Who has such a node has imported it.
  return optax is not None and isinstance(x, optax.MaskedNode)


def tree_size(tree: Any) -> int:
  """Returns the number of elements in all arrays (or shapes) of a tree."""
  return sum(int(leaf.size) for leaf in jax.tree.leaves(tree))


def total_num_vars(variables: Any) -> int:
  """Returns the number of elements in all variables."""
  return tree_size(variables)


def assert_same_shape_and_dtype(x: Any, y: Any) -> None:
  """Raises ValueError unless the leaves of two trees are alike pairwise."""

  def check(a: Any, b: Any) -> None:
    if a.shape != b.shape or a.dtype != b.dtype:
      raise ValueError(
        f'wants equal shapes and dtypes, got {a.shape} {a.dtype} and '
        f'{b.shape} {b.dtype}'
      )

  jax.tree.map(check, x, y)


def merge_dict(dict1: Mapping, dict2: Mapping) -> dict[Any, Any]:
  """Returns both dicts in one; ValueError if a key has different values."""
  for key in set(dict1) & set(dict2):
    if dict1[key] is not dict2[key]:
      raise ValueError(
        f'The same key {key!r} has different values in two dicts: '
        f'{dict1[key]} and {dict2[key]}; rename one'
      )
  return {**dict1, **dict2}


def tree_unstack(tree: Any, axis: int) -> Sequence[Any]:
  """Returns a list of trees, one for each index along an axis of all leaves.

  Raises:
    ValueError: a leaf is no array, or lacks that axis, or its size differs.
  """
  leaves = jax.tree.leaves(tree)
  if not leaves:
    return []
  if not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
    raise ValueError('tree_unstack wants arrays of jax or numpy as leaves')
  if all(leaf.ndim == 0 for leaf in leaves):
    return [tree]
  sizes = {x.shape[axis] if x.ndim > axis else None for x in leaves}
  if len(sizes) > 1 or None in sizes:
    raise ValueError(
      f'all leaves must have one size along axis {axis}, got shapes '
      f'{[leaf.shape for leaf in leaves]}'
    )
  return [
    jax.tree.map(lambda x, i=i: x.take(i, axis), tree)
    for i in range(sizes.pop())
  ]


def concat_nested_maps(map_list: list[NestedMap], axis: int) -> NestedMap:
  """Returns a map whose arrays are joined along `axis`.

  What is no array, has no such axis, or is not in the second map is taken from
  the first.
  """
  first, *rest = map_list
  if not rest:
    return first
  joined = NestedMap(first)
  for key, value in first.items():
    if key not in rest[0]:
      continue
    values = [m[key] for m in map_list]
    if isinstance(value, dict):
      joined[key] = concat_nested_maps(values, axis)
    elif isinstance(value, jax.Array) and value.ndim > axis:
      joined[key] = jnp.concatenate(values, axis)
  return joined


def filter_by_matching_keys(
  batch: Mapping[str, Any], prefixes: Sequence[str]
) -> tuple[NestedMap, NestedMap]:
  """Returns the entries whose key begins with one of `prefixes`, and others."""
  matches = {k: k.startswith(tuple(prefixes)) for k in batch}
  pick = lambda want: NestedMap(
    {k: v for k, v in batch.items() if matches[k] is want}
  )
  return pick(True), pick(False)
