# SPDX-License-Identifier: Apache-2.0
"""Rendering of nested values as sorted `path : value` lines."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
import jax
import numpy as np

# Fields of flax modules that are not part of the configuration.
_SKIPPED = ('parent',)


class StrOverride:
  """An object that is rendered by its `str`."""


def nested_struct_to_text(
  obj_to_visit: Any, include_types: bool = False, separator: str = ':'
) -> Any:
  """Returns one sorted line per leaf, such as `a.b[3].c : 1`.

  Args:
    obj_to_visit: nested values, as in `visit_nested_struct`.
    include_types: whether to return (text, {path: name of the type}).
    separator: between path and value.

  Raises:
    ValueError: a container contains itself.
  """
  lines: list[str] = []
  types: dict[str, str] = {}

  def add(path: str, leaf: Any) -> None:
    lines.append(f'{path} {separator} {_leaf_text(leaf)}')
    types[path] = type(leaf).__name__

  visit_nested_struct(obj_to_visit, add)
  text = '\n'.join(sorted(lines)) + '\n'
  return (text, types) if include_types else text


def visit_nested_struct(
  obj_to_visit: Any,
  visit_fn: Callable[[str, Any], None],
  enter_fn: Callable[[str, Any], bool] | None = None,
  exit_fn: Callable[[str, Any], None] | None = None,
) -> None:
  """Calls `visit_fn(path, leaf)` for each leaf of nested values, in order.

  Args:
    obj_to_visit: Configs, parameters, dataclasses, maps, lists and tuples.
    visit_fn: called on leaves, and on containers that are not entered.
    enter_fn: called on each container; returns whether to enter it.
    exit_fn: called on each entered container, after its children.

  Raises:
    ValueError: a container contains itself.
  """
  entered: list[int] = []

  def visit(path: str, value: Any) -> None:
    children = _children(value)
    if children is None or (enter_fn and not enter_fn(path, value)):
      visit_fn(path, value)
      return
    if id(value) in entered:
      raise ValueError(f'A circular reference chain is detected at {path!r}')
    entered.append(id(value))
    for step, child in children:
      dot = '.' if path and not step.startswith('[') else ''
      visit(f'{path}{dot}{step}', child)
    entered.pop()
    if exit_fn:
      exit_fn(path, value)

  visit('', obj_to_visit)


def _children(value: Any) -> list[tuple[str, Any]] | None:
  """Returns (step, child) pairs of a container, None for a leaf."""
  if isinstance(value, fdl.Buildable):
    return _buildable_children(value)
  if isinstance(value, StrOverride) or isinstance(value, type):
    return None
  if dataclasses.is_dataclass(value):
    names = [f.name for f in dataclasses.fields(value) if f.init]
    return [(n, getattr(value, n)) for n in names if n not in _SKIPPED]
  if isinstance(value, Mapping) and value:
    return [(str(k), v) for k, v in value.items()]
  if isinstance(value, tuple) and hasattr(value, '_fields'):
    return [(f'[{k}]', getattr(value, k)) for k in value._fields]
  if hasattr(value, 'IterParams'):  # Parameters of Lingvo.
    return list(value.IterParams())
  if isinstance(value, list | tuple) and any(map(_has_own_lines, value)):
    return [(f'[{i}]', v) for i, v in enumerate(value)]
  return None


def _buildable_children(value: fdl.Buildable) -> list[tuple[str, Any]]:
  arguments = fdl.ordered_arguments(value, include_defaults=True)
  children = [('cls', fdl.get_callable(value))]
  children += [(str(n), v) for n, v in arguments.items() if n not in _SKIPPED]
  return children


def _has_own_lines(value: Any) -> bool:
  """Whether a list element is rendered on lines of its own."""
  return _children(value) is not None or isinstance(value, type)


def _leaf_text(leaf: Any) -> str:
  if isinstance(leaf, str) and not isinstance(leaf, enum.Enum):
    return repr(leaf)
  if isinstance(leaf, enum.Enum):
    return f'{type(leaf).__name__}.{leaf.name}'
  if isinstance(leaf, np.dtype) or hasattr(leaf, 'as_numpy_dtype'):
    return leaf.name  # The latter is a TensorFlow dtype.
  dtype = leaf.__dict__.get('dtype') if isinstance(leaf, type) else None
  if isinstance(dtype, np.dtype):
    return dtype.name  # jnp.float32 and the like.
  if isinstance(leaf, type) or inspect.isroutine(leaf):
    return _callable_text(leaf)
  if isinstance(leaf, np.ndarray | jax.Array):
    return f'array({np.asarray(leaf).tolist()}, dtype={leaf.dtype})'
  return str(leaf) if isinstance(leaf, StrOverride) else repr(leaf)


def _callable_text(leaf: Any) -> str:
  if isinstance(leaf, type) and issubclass(leaf, np.generic):
    return np.dtype(leaf).name
  kind = 'type' if isinstance(leaf, type) else 'callable'
  module = getattr(leaf, '__module__', '')
  return f'{kind}/{module}/{getattr(leaf, "__qualname__", repr(leaf))}'
