# SPDX-License-Identifier: Apache-2.0
"""NestedMap: a dict with attribute access, registered as a pytree."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

# Identifiers separated by slashes, as in keys of feature converters.
_KEY = re.compile(r'[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z0-9_]+)*')
_STEP = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]')


# Cached: every training step creates maps with the same few keys.
@functools.lru_cache(maxsize=4096)
def _check_key(key: Any) -> None:
  if not (isinstance(key, str) and _KEY.fullmatch(key)):
    raise ValueError(
      f'NestedMap key must be an identifier, got {key!r}; '
      'use letters, digits and underscores'
    )
  if hasattr(dict, key):
    raise ValueError(f'NestedMap key {key!r} hides a method of dict; rename')


class NestedMap(dict):
  """A dict with attribute access, nested arbitrarily with lists and tuples.

  JAX visits its children in sorted key order: maps with equal keys have equal
  structures for any order of insertion.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    for key in self:
      self.CheckKey(key)

  @staticmethod
  def CheckKey(key: Any) -> None:
    """Raises ValueError unless `key` is a valid attribute name."""
    _check_key(key)

  def __setitem__(self, key: str, value: Any) -> None:
    self.CheckKey(key)
    super().__setitem__(key, value)

  def __setattr__(self, name: str, value: Any) -> None:
    self[name] = value

  def __getattr__(self, name: str) -> Any:
    try:
      return self[name]
    except KeyError:
      raise AttributeError(
        f'NestedMap has no key {name!r}; it has {sorted(self)}'
      ) from None

  def __delattr__(self, name: str) -> None:
    try:
      del self[name]
    except KeyError:
      raise AttributeError(f'NestedMap has no key {name!r}') from None

  def copy(self) -> NestedMap:
    """Returns a shallow copy."""
    return NestedMap(self)

  def DeepCopy(self) -> NestedMap:
    """Returns a copy whose containers are new and whose leaves are shared."""
    return _map_containers(self, lambda leaf: leaf)

  @staticmethod
  def FromNestedDict(x: Any) -> Any:
    """Returns `x` with every dict in it, at any depth, as a NestedMap."""
    if isinstance(x, Mapping):
      return NestedMap({k: NestedMap.FromNestedDict(v) for k, v in x.items()})
    if isinstance(x, list | tuple) and not hasattr(x, '_fields'):
      return type(x)(NestedMap.FromNestedDict(v) for v in x)
    return x

  def ToNestedDict(self) -> dict[str, Any]:
    """Returns this map with every NestedMap in it as a plain dict."""

    def convert(x: Any) -> Any:
      if isinstance(x, NestedMap):
        return {k: convert(v) for k, v in x.items()}
      if isinstance(x, list | tuple) and not hasattr(x, '_fields'):
        return type(x)(convert(v) for v in x)
      return x

    return convert(self)

  def GetItem(self, path: str) -> Any:
    """Returns the value at a path such as `a.b[2].c`.

    Raises:
      KeyError: there is no such path.
    """
    value: Any = self
    for step in _steps(path):
      value = value[step]
    return value

  def Get(self, path: str, default: Any = None) -> Any:
    """Returns the value at `path`, or `default`."""
    try:
      return self.GetItem(path)
    except (KeyError, IndexError, TypeError, ValueError):
      return default

  def Set(self, path: str, value: Any) -> None:
    """Stores `value` at `path`; creates the maps and list entries it lacks."""
    steps = _steps(path)
    node: Any = self
    for step, child in itertools.pairwise(steps):
      empty = [] if isinstance(child, int) else NestedMap()
      if isinstance(step, int) and step == len(node):
        node.append(empty)
      elif not isinstance(step, int) and step not in node:
        node[step] = empty
      node = node[step]
    last = steps[-1]
    if isinstance(last, int) and last == len(node):
      node.append(value)
    else:
      node[last] = value

  def FlattenItems(self) -> list[tuple[str, Any]]:
    """Returns (path, leaf) pairs in sorted key order; None is a leaf."""
    items: list[tuple[str, Any]] = []
    _visit(self, '', lambda path, leaf: items.append((path, leaf)))
    return items

  def Flatten(self) -> list[Any]:
    """Returns the leaves in sorted key order."""
    return [leaf for _, leaf in self.FlattenItems()]

  def Pack(self, leaves: Iterable[Any]) -> NestedMap:
    """Returns a map of this structure with other leaves.

    Raises:
      ValueError: the number of leaves differs.
    """
    leaves = list(leaves)
    if len(leaves) != (num_leaves := len(self.Flatten())):
      raise ValueError(f'Pack expects {num_leaves} leaves, got {len(leaves)}')
    leaf_iterator = iter(leaves)
    return _map_containers(self, lambda _: next(leaf_iterator))

  def Transform(self, fn: Callable[[Any], Any]) -> NestedMap:
    """Returns a map of this structure with `fn(leaf)` for its leaves."""
    return _map_containers(self, fn)

  def TransformWithKey(self, fn: Callable[[str, Any], Any]) -> NestedMap:
    """Returns a map of this structure with `fn(path, leaf)` for its leaves."""
    return self.Pack(fn(path, leaf) for path, leaf in self.FlattenItems())

  def IsCompatible(self, other: NestedMap) -> bool:
    """Whether both have the same paths to leaves."""
    items, other_items = self.FlattenItems(), other.FlattenItems()
    return [path for path, _ in items] == [path for path, _ in other_items]

  def Filter(self, keep: Callable[[Any], bool]) -> NestedMap:
    """Returns the leaves with `keep(leaf)`, without empty containers."""
    return self.FilterKeyVal(lambda _, leaf: keep(leaf))

  def FilterKeyVal(self, keep: Callable[[str, Any], bool]) -> NestedMap:
    """Returns the leaves with `keep(path, leaf)`, without empty containers."""
    return _filter(self, '', keep) or NestedMap()

  def DebugString(self) -> str:
    """Returns one line `path  shape dtype`, or the value, per leaf."""
    lines = []
    for path, leaf in self.FlattenItems():
      is_array = hasattr(leaf, 'shape') and hasattr(leaf, 'dtype')
      text = f'{tuple(leaf.shape)} {leaf.dtype}' if is_array else repr(leaf)
      lines.append(f'{path}  {text}')
    return '\n'.join(lines)

  def __deepcopy__(self, memo: dict[int, Any]) -> NestedMap:
    return NestedMap({k: copy.deepcopy(v, memo) for k, v in self.items()})


def _steps(path: str) -> list[str | int]:
  matches = _STEP.findall(path)
  if not matches:
    raise ValueError(f'empty or malformed path {path!r}; write a.b[0].c')
  return [name if name else int(index) for name, index in matches]


def _children(x: Any, path: str) -> Sequence[tuple[str, Any, Any]] | None:
  """Returns (path, key, child) triples, or None for a leaf."""
  if isinstance(x, dict):
    dot = path + '.' if path else ''
    return [(f'{dot}{key}', key, x[key]) for key in sorted(x)]
  if isinstance(x, list | tuple) and not hasattr(x, '_fields'):
    return [(f'{path}[{i}]', i, v) for i, v in enumerate(x)]
  return None


def _visit(x: Any, path: str, fn: Callable[[str, Any], None]) -> None:
  children = _children(x, path)
  if children is None:
    fn(path, x)
    return
  for child_path, _, child in children:
    _visit(child, child_path, fn)


def _map_containers(x: Any, fn: Callable[[Any], Any]) -> Any:
  children = _children(x, '')
  if children is None:
    return fn(x)
  if isinstance(x, dict):
    return type(x)({key: _map_containers(v, fn) for _, key, v in children})
  return type(x)(_map_containers(v, fn) for _, _, v in children)


def _filter(x: Any, path: str, keep: Callable[[str, Any], bool]) -> Any:
  children = {}
  for child_path, key, child in _children(x, path) or ():
    if _children(child, child_path) is None:
      if keep(child_path, child):
        children[key] = child
    elif (filtered := _filter(child, child_path, keep)) is not None:
      children[key] = filtered
  if not children:
    return None
  return type(x)(children if isinstance(x, dict) else children.values())


def _flatten_with_keys(x: NestedMap):
  keys = tuple(sorted(x))
  return [(jax.tree_util.DictKey(k), x[k]) for k in keys], keys


def _flatten(x: NestedMap):
  keys = tuple(sorted(x))
  return [x[k] for k in keys], keys


def _unflatten(keys: tuple[str, ...], children: Iterable[Any]) -> NestedMap:
  # Without the check of keys, which passed when the map was created.
  result = NestedMap()
  dict.update(result, zip(keys, children, strict=True))
  return result


jax.tree_util.register_pytree_with_keys(
  NestedMap, _flatten_with_keys, _unflatten, _flatten
)
