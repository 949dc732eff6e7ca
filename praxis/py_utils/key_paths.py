# SPDX-License-Identifier: Apache-2.0
"""Key paths of pytree leaves, and selection of leaves by path."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax

from praxis import trees

Patterns = str | re.Pattern | Iterable[re.Pattern | str]


def tree_paths(tree: Any, separator: str = '/') -> list[tuple[str, Any]]:
  """Returns (path, leaf) pairs; keys are joined by `separator`."""
  pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
  return [
    (jax.tree_util.keystr(path, simple=True, separator=separator), leaf)
    for path, leaf in pairs
  ]


def map_with_path(
  fn: Callable[..., Any],
  tree: Any,
  *rest: Any,
  separator: str = '/',
  is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
  """Returns `tree` with each leaf replaced by `fn(path, leaf, ...)`.

  The further arguments of `fn` come from the trees in `rest`, as in
  `jax.tree.map`.
  """
  return jax.tree_util.tree_map_with_path(
    lambda path, *leaves: fn(
      jax.tree_util.keystr(path, simple=True, separator=separator), *leaves
    ),
    tree,
    *rest,
    is_leaf=is_leaf,
  )


def extract_prefixed_keys_from_nested_map(
  node: Any,
  prefix: str = '',
  key_separator: str = '/',
  left_separator: str = '[',
  right_separator: str = ']',
  is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
  """Returns the structure with each leaf replaced by its path: `a/b[0]/c`.

  Args:
    node: the tree. Fields of named tuples and dataclasses are joined like keys.
    prefix: the path of `node`.
    key_separator: joins keys and field names.
    left_separator: precedes the index of a list element.
    right_separator: follows the index of a list element.
    is_leaf: selects nodes that are replaced by None.

  Returns:
    The tree of paths; None if `node` is a leaf and `prefix` is empty.
  """

  def visit(node: Any, path: str) -> Any:
    keyed = lambda key: f'{path}{key_separator}{key}' if path else str(key)
    if is_leaf is not None and is_leaf(node):
      return None
    if isinstance(node, dict):
      return type(node)({k: visit(v, keyed(k)) for k, v in node.items()})
    if hasattr(node, '_fields'):
      fields = [visit(getattr(node, f), keyed(f)) for f in node._fields]
      return type(node)(*fields)
    if isinstance(node, list | tuple):
      if isinstance(node, jax.sharding.PartitionSpec):
        return path
      return type(node)(
        visit(v, f'{path}{left_separator}{i}{right_separator}')
        for i, v in enumerate(node)
      )
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
      names = [f.name for f in dataclasses.fields(node)]
      changes = {f: visit(getattr(node, f), keyed(f)) for f in names}
      return dataclasses.replace(node, **changes)
    return path or None

  return visit(node, prefix)


def extract_keys(
  n: Any,
  p: str,
  key_separator: str,
  left_separator: str,
  right_separator: str,
  is_leaf: Callable[[Any], bool] | None,
) -> Any:
  """Returns `extract_prefixed_keys_from_nested_map` of these arguments.

  Args:
    n: the tree.
    p: the path of the tree.
    key_separator: joins keys and field names.
    left_separator: precedes the index of a list element.
    right_separator: follows the index of a list element.
    is_leaf: selects nodes that are replaced by None.
  """
  return extract_prefixed_keys_from_nested_map(
    n, p, key_separator, left_separator, right_separator, is_leaf
  )


def match_variable_names(
  tree: Any, patterns: Patterns, is_leaf: Callable[..., bool] | None = None
) -> Any:
  """Returns, per leaf, whether its path fully matches one of the patterns."""
  return trees.fullmatch_path(tree, patterns, is_leaf=is_leaf)


def update_matched_variables(
  old_tree: Any, new_tree: Any, patterns: Patterns, invert: bool = False
) -> Any:
  """Returns `old_tree` with its matching leaves replaced from `new_tree`.

  `invert` replaces the leaves that do not match.
  """
  mask = match_variable_names(old_tree, patterns)
  indices = jax.tree.map(lambda match: int(match != invert), mask)
  return select_nodes_by_indices(indices, old_tree, new_tree)


def select_nodes_by_indices(indices: Any, *trees: Any) -> Any:
  """Returns a tree whose leaf is that of `trees[index]`, index in `indices`."""
  return jax.tree.map(lambda i, *leaves: leaves[i], indices, *trees)
