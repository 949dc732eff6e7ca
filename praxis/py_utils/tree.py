# SPDX-License-Identifier: Apache-2.0
"""Pytrees and maps: sizes, splitting, merging, masked leaves."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis.nested_map import NestedMap


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BpropMaskedNode:
  """Replaces a variable without a gradient; a pytree without leaves."""


def is_bprop_masked_node(x: Any) -> bool:
  """Whether `x` replaces a variable without a gradient."""
  return isinstance(x, BpropMaskedNode)


def is_optax_masked_node(x: Any) -> bool:
  """Whether `x` is the `optax.MaskedNode` of a masked leaf."""
  # A node of optax can exist only if optax is imported.
  optax = sys.modules.get('optax')
  return optax is not None and isinstance(x, optax.MaskedNode)


def tree_size(tree: Any) -> int:
  """Returns the number of elements in all arrays (or shapes) of a tree."""
  return sum(int(leaf.size) for leaf in jax.tree.leaves(tree))


def total_num_vars(variables: Any) -> int:
  """Returns the number of elements in all variables."""
  return tree_size(variables)


def assert_same_shape_and_dtype(x: Any, y: Any) -> None:
  """Checks that corresponding leaves have one shape and dtype.

  Raises:
    ValueError: two leaves differ in shape or dtype.
  """

  def check(a: Any, b: Any) -> None:
    if a.shape != b.shape or a.dtype != b.dtype:
      raise ValueError(
        f'expected equal shapes and dtypes, got {a.shape} {a.dtype} and '
        f'{b.shape} {b.dtype}'
      )

  jax.tree.map(check, x, y)


def merge_dict(
  dict1: Mapping[Any, Any], dict2: Mapping[Any, Any]
) -> dict[Any, Any]:
  """Returns the union of two dicts.

  Raises:
    ValueError: a key maps to two different objects.
  """
  merged = dict(dict1)
  for key, value in dict2.items():
    if merged.setdefault(key, value) is not value:
      raise ValueError(
        f'The same key {key!r} has different values in two dicts: '
        f'{merged[key]} and {value}; rename one'
      )
  return merged


def tree_unstack(tree: Any, axis: int) -> Sequence[Any]:
  """Returns one tree for each index along `axis` of all leaves.

  A tree of scalars is returned as the only element. A vector of objects becomes
  its elements, such as bytes.

  Raises:
    ValueError: a leaf is not an array, or the leaves differ in the size of
      `axis`.
  """
  leaves, treedef = jax.tree.flatten(tree)
  if not leaves:
    return []
  if not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
    raise ValueError('tree_unstack takes arrays of jax or numpy as leaves')
  shapes = [leaf.shape for leaf in leaves]
  if not any(shapes):
    return [tree]
  sizes = {shape[axis] for shape in shapes if axis < len(shape)}
  if len(sizes) != 1 or any(axis >= len(shape) for shape in shapes):
    raise ValueError(
      f'all leaves must have one size along axis {axis}, got shapes {shapes}'
    )

  return [
    jax.tree.unflatten(treedef, [leaf.take(index, axis) for leaf in leaves])
    for index in range(sizes.pop())
  ]


def concat_nested_maps(map_list: list[NestedMap], axis: int) -> NestedMap:
  """Returns a map whose arrays are concatenated along `axis`.

  Entries that are not arrays, lack that axis, or are missing in the second map
  come from the first map.
  """
  first, *rest = map_list
  if not rest:
    return first
  result = NestedMap(first)
  for key, value in first.items():
    if key not in rest[0]:
      continue
    values = [m[key] for m in map_list]
    if isinstance(value, dict):
      result[key] = concat_nested_maps(values, axis)
    elif isinstance(value, jax.Array) and value.ndim > axis:
      result[key] = jnp.concatenate(values, axis)
  return result


def filter_by_matching_keys(
  batch: Mapping[str, Any], prefixes: Sequence[str]
) -> tuple[NestedMap, NestedMap]:
  """Returns (entries whose key starts with one of `prefixes`, the others)."""
  matching, others = NestedMap(), NestedMap()
  for key, value in batch.items():
    (matching if key.startswith(tuple(prefixes)) else others)[key] = value
  return matching, others
