# SPDX-License-Identifier: Apache-2.0
"""Pytrees as text, and root mean squares by subtree."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from praxis import pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor

_BRACKETS = str.maketrans('', '', '{}(),[]')


def pretty_repr(values: Any, num_spaces: int = 4) -> str:
  """Returns nested dicts and lists as indented text, an entry per line."""
  if isinstance(values, dict):
    inner = [f'{k}: {pretty_repr(v, num_spaces)},\n' for k, v in values.items()]
    left, right = '{', '}'
  elif isinstance(values, list | tuple):
    inner = [f'{pretty_repr(v, num_spaces)},\n' for v in values]
    left, right = '[', ']'
  else:
    return repr(values)
  if not inner:
    return left + right
  body = textwrap.indent(''.join(inner), ' ' * num_spaces)
  return f'{left}\n{body}{right}'


def pretty_format_iters(input_str: str) -> str:
  """Returns a text without brackets, commas, and the lines they leave empty."""
  lines = input_str.translate(_BRACKETS).splitlines()
  return '\n'.join(line for line in lines if line.strip())


def pretty_repr_shapes(
  replicated_vars: Nested[Any],
  is_vars_replicated: bool,
  with_dtype: bool = False,
) -> str:
  """Returns the shapes of a tree, as `8x16`, by path.

  Args:
    replicated_vars: Pytree of arrays or jax.ShapeDtypeStruct.
    is_vars_replicated: Whether the first dimension counts replicas; it is left
      out.
    with_dtype: Whether dtypes follow the shapes.
  """

  def text(x: Any) -> str:
    shape = x.shape[1:] if is_vars_replicated else x.shape
    dtype = f' {x.dtype}' if with_dtype else ''
    return 'x'.join(map(str, shape)) + dtype

  return pretty_format_iters(pretty_repr(jax.tree.map(text, replicated_vars)))


def pretty_repr_provenance(provenance: Any) -> str:
  """Returns the provenance of the arrays of a pytree by path."""
  return pretty_format_iters(pretty_repr(provenance))


def l2_mean(
  tree: Nested[JTensor], prefix: str = '', max_level: int = 4, sep: str = '/'
) -> dict[str, JTensor]:
  """Returns the root mean square of each subtree by path.

  Unlike a norm it does not grow with the number of entries or replicas.

  Args:
    tree: Dicts, lists and tuples of arrays.
    prefix: Prefix of the paths.
    max_level: Largest depth of a subtree.
    sep: Separator of the parts of a path.
  """
  start = (prefix,) if prefix else ()
  return {
    sep.join((*start, *path)): _root_mean_square(subtree)
    for path, subtree in _subtrees(tree, max_level)
  }


def _subtrees(
  root: Any, max_level: int, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
  """Yields (path, subtree) at `max_level`, and leaves above it."""
  if root is None:
    return
  is_deep = len(path) >= max_level
  if isinstance(root, dict) and not is_deep:
    children: Iterable[tuple[Any, Any]] = root.items()
  elif isinstance(root, list | tuple) and not is_deep:
    children = ((str(i), child) for i, child in enumerate(root))
  else:
    yield path, root
    return
  for name, child in children:
    yield from _subtrees(child, max_level, (*path, str(name)))


def _root_mean_square(tree: Nested[JTensor]) -> JTensor:
  count, total = 0, jnp.float32(0)
  for x in jax.tree.leaves(tree):
    x = jnp.asarray(x, jnp.float32)
    # Scaled, so that squares of large entries do not overflow.
    largest = jnp.maximum(jnp.abs(x).max(), 1.0)
    count += x.size
    total += largest**2 * jnp.square(x / largest).sum()
  return jnp.sqrt(total / count)
