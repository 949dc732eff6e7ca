# SPDX-License-Identifier: Apache-2.0
"""The name of every leaf of a train state, as its directory is called.

`mdl_vars.params.lm.softmax.w`, `opt_states_0_2.m.params.lm.softmax.w`, `step`:
keys and attributes are joined by dots, the index of a list by an underscore.
"""

from __future__ import annotations

from typing import Any

import jax


def flatten(tree: Any) -> dict[str, Any]:
  """The leaves of `tree` by name, in the order of `jax.tree.leaves`."""
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  named = {leaf_name(path): leaf for path, leaf in leaves}
  if len(named) < len(leaves):
    names = [leaf_name(path) for path, _ in leaves]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(
      f'two leaves of the train state are both called {twice!r}; rename one'
      ' of the variables'
    )
  return named


def unflatten(tree: Any, named: dict[str, Any]) -> Any:
  """`tree` with its leaves replaced by those of `named`."""
  return jax.tree.unflatten(
    jax.tree.structure(tree), [named[name] for name in flatten(tree)]
  )


def leaf_name(path: tuple[Any, ...]) -> str:
  """The name of the leaf at a JAX key path."""
  return ''.join(_part(key) for key in path).removeprefix('.')


def _part(key: Any) -> str:
  if isinstance(key, jax.tree_util.SequenceKey):
    return f'_{key.idx}'
  if isinstance(key, jax.tree_util.FlattenedIndexKey):
    return f'_{key.key}'
  name = key.name if isinstance(key, jax.tree_util.GetAttrKey) else key.key
  return '.' + str(name).replace('/', '.')
