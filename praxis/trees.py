# SPDX-License-Identifier: Apache-2.0
"""Pytree paths, matching by path patterns, and subset comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import jax

KeyType = (
  jax.tree_util.DictKey
  | jax.tree_util.SequenceKey
  | jax.tree_util.GetAttrKey
  | jax.tree_util.FlattenedIndexKey
)
Patterns = str | re.Pattern | Iterable[re.Pattern | str]


def to_path_tree(
  tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
  """Returns the tree with each leaf replaced by its path: `a/b[0]/c`.

  Leaves for which `is_leaf` holds become None.
  """

  def path_of(path: Any, leaf: Any) -> str | None:
    if is_leaf is not None and is_leaf(leaf):
      return None
    return '/'.join(map(_step, path)).replace('/[', '[')

  return jax.tree_util.tree_map_with_path(path_of, tree)


def fullmatch_path(
  tree: Any, patterns: Patterns, is_leaf: Callable[..., bool] | None = None
) -> Any:
  """Returns, per leaf, whether its path fully matches one of the patterns."""
  if isinstance(patterns, str | re.Pattern):
    patterns = [patterns]
  compiled = [re.compile(pattern) for pattern in patterns]
  return jax.tree.map(
    lambda path: any(p.fullmatch(path) for p in compiled),
    to_path_tree(tree, is_leaf=is_leaf),
    is_leaf=is_leaf,
  )


def is_subset(subset: Any, superset: Any) -> bool:
  """Whether `superset` equals `subset` up to more keys and longer lists."""
  if isinstance(subset, dict) and isinstance(superset, dict):
    return set(subset) <= set(superset) and all(
      is_subset(subset[key], superset[key]) for key in subset
    )
  if type(subset) is not type(superset):
    return False
  if type(subset) in (list, tuple):
    return len(subset) <= len(superset) and all(
      map(is_subset, subset, superset)
    )
  return subset == superset


def extract_elements_matching_subset_structure(
  subset: Any, superset: Any
) -> Any:
  """Returns the elements of `superset` in the structure of `subset`.

  Raises:
    ValueError: `subset` has a key, element or container that `superset` lacks.
  """
  if isinstance(subset, dict) and isinstance(superset, dict):
    if missing := set(subset) - set(superset):
      raise ValueError(
        f'keys {sorted(missing)} of subset are not in superset, which has '
        f'{sorted(superset)}'
      )
    return type(subset)(
      {
        key: extract_elements_matching_subset_structure(value, superset[key])
        for key, value in subset.items()
      }
    )
  if type(subset) is type(superset) and type(subset) in (list, tuple):
    if len(subset) > len(superset):
      raise ValueError(
        f'subset has {len(subset)} entries, superset only {len(superset)}'
      )
    return type(subset)(
      map(extract_elements_matching_subset_structure, subset, superset)
    )
  if not jax.tree_util.all_leaves([subset]):
    raise ValueError(
      f'subset has a {type(subset).__name__} where superset has a '
      f'{type(superset).__name__}'
    )
  return superset


def get_shape_dtype(nested_obj: Any) -> Any:
  """Returns the tree with each array replaced by its ShapeDtypeStruct."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nested_obj
  )


def copy(pytree: Any) -> Any:
  """Returns a copy of the tree; leaves are shared."""
  return jax.tree.map(lambda leaf: leaf, pytree)


def _step(key: Any) -> str:
  if isinstance(key, jax.tree_util.SequenceKey):
    return f'[{key.idx}]'
  return jax.tree_util.keystr((key,), simple=True)
