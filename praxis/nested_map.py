# SPDX-License-Identifier: Apache-2.0
"""NestedMap: a dict with attribute access, registered with JAX and Flax."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import jax
from absl import logging
from flax import serialization

# The first characters of a key; the others are free, as in `inputs/ids`.
_KEY_START = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')
_INDEXED_KEY = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\[(\d+)\]')
# What `_map` drops from its container.
_DROPPED = object()


# Cached: every training step creates maps with the same few keys.
@functools.lru_cache(maxsize=4096)
def _check_key(key: Any) -> None:
  if not (isinstance(key, str) and _KEY_START.match(key)):
    raise ValueError(
      f'Invalid NestedMap key {key!r}; start it with a letter or underscore'
    )
  if hasattr(dict, key):
    raise ValueError(f'NestedMap key {key!r} hides a method of dict; rename')


class NestedMap(dict[str, Any]):
  """A dict with attribute access, nested arbitrarily with dicts and lists.

  Paths such as `a.b[2].c` name values. Leaves are all values except dicts and
  lists: a tuple is a leaf. JAX visits tuples too, and the keys in sorted
  order: maps with equal keys have equal structures for any order of insertion.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    for key in self:
      self.CheckKey(key)

  @staticmethod
  def CheckKey(key: Any) -> None:
    """Raises ValueError unless `key` is a valid key."""
    _check_key(key)

  @staticmethod
  def SquareBracketIndex(key: str) -> tuple[str, int | None]:
    """Returns ('k', 3) for 'k[3]', and (key, None) for a key without index."""
    match = _INDEXED_KEY.fullmatch(key)
    return (match[1], int(match[2])) if match else (key, None)

  def __setitem__(self, key: str, value: Any) -> None:
    self.CheckKey(key)
    super().__setitem__(key, value)

  def __setattr__(self, name: str, value: Any) -> None:
    self[name] = value

  def __missing__(self, key: str) -> Any:
    raise KeyError(f'{key!r}; available attributes: {sorted(self)}')

  def __getattr__(self, name: str) -> Any:
    try:
      return self[name]
    except KeyError:
      raise AttributeError(
        f'NestedMap has no key {name!r}; available attributes: {sorted(self)}'
      ) from None

  def __delattr__(self, name: str) -> None:
    try:
      del self[name]
    except KeyError:
      raise AttributeError(f'NestedMap has no key {name!r}') from None

  def __dir__(self) -> list[str]:
    return self.Keys() + list(super().__dir__())

  def copy(self) -> Self:
    """Returns a shallow copy."""
    return type(self)(self)

  def DeepCopy(self) -> Self:
    """Returns a copy whose containers are new and whose leaves are shared."""
    return self.Transform(lambda leaf: leaf)

  @staticmethod
  def FromNestedDict(x: Any) -> Any:
    """Returns `x` with every dict in it, at any depth, as a NestedMap."""
    if isinstance(x, Mapping):
      return NestedMap({k: NestedMap.FromNestedDict(v) for k, v in x.items()})
    if isinstance(x, list | tuple) and not hasattr(x, '_fields'):
      return type(x)(NestedMap.FromNestedDict(v) for v in x)
    return x

  @staticmethod
  def FromNestedDataclass(x: Any) -> NestedMap:
    """Returns the fields of a dataclass, nested ones too, as a NestedMap.

    Raises:
      ValueError: `x` is not a dataclass.
    """
    if not dataclasses.is_dataclass(x) or isinstance(x, type):
      raise ValueError(f'{x} must be a dataclass, got {type(x)}')
    return NestedMap.FromNestedDict(dataclasses.asdict(x))

  def ToNestedDict(self) -> dict[str, Any]:
    """Returns this map with every NestedMap in it as a plain dict."""

    def convert(x: Any) -> Any:
      if isinstance(x, dict):
        return {k: convert(v) for k, v in x.items()}
      if isinstance(x, list | tuple) and not hasattr(x, '_fields'):
        return type(x)(convert(v) for v in x)
      return x

    return convert(self)

  def GetItem(self, path: str) -> Any:
    """Returns the value at a path such as `a.b[2].c`.

    Raises:
      KeyError: a key of the path is missing.
      IndexError: a list of the path is too short.
      TypeError: a key of the path follows a list, or another non-dict.
    """
    value: Any = self
    for step in path.split('.'):
      key, index = self.SquareBracketIndex(step)
      value = value[key]
      if index is not None:
        value = value[index]
    return value

  def Get(self, path: str, default: Any = None) -> Any:
    """Returns the value at `path`, or `default`."""
    try:
      return self.GetItem(path)
    except (KeyError, IndexError, TypeError):
      return default

  def Has(self, path: str) -> bool:
    """Whether there is a value at `path`."""
    try:
      self.GetItem(path)
    except (KeyError, IndexError, TypeError):
      return False
    return True

  def GetSlice(self, paths: Iterable[str]) -> NestedMap:
    """Returns a map of the values at these paths.

    Raises:
      KeyError: a key of a path is missing.
    """
    result = NestedMap()
    for path in paths:
      result.Set(path, self.GetItem(path))
    return result

  def Keys(self) -> list[str]:
    """Returns the paths of the leaves in sorted key order."""
    return [path for path, _ in self.FlattenItems()]

  def Set(self, path: str, value: Any) -> None:
    """Stores `value` at `path`; creates the maps and list entries it lacks.

    Raises:
      ValueError: an index is greater than the length of its list, or a key
        follows a value that is not a dict.
    """
    node: Any = self
    steps = path.split('.')
    for position, step in enumerate(steps):
      self.CheckKey(step)
      name, index = self.SquareBracketIndex(step)
      key: str | int = name
      if not isinstance(node, dict):
        raise ValueError(
          f'cannot set {path!r}: the value before {step!r} must be a dict or '
          f'NestedMap, got {type(node)}'
        )
      holder: Any = node
      if index is not None:
        holder, key = node.setdefault(name, []), index
        if index > len(holder):
          raise ValueError(
            f'cannot set {path!r}: {index} is greater than the length '
            f'{len(holder)} of the list at {step!r}'
          )
        if index == len(holder):
          holder.append(None)
      if position == len(steps) - 1:
        holder[key] = value
      elif index is None and key not in holder:
        holder[key] = NestedMap()
      elif index is not None and holder[key] is None:
        holder[key] = NestedMap()
      node = holder[key]

  def Update(self, other: NestedMap) -> Self:
    """Stores the leaves of `other` at their paths; returns self."""
    for path, value in other.FlattenItems():
      self.Set(path, value)
    return self

  def Union(self, other: NestedMap) -> NestedMap:
    """Returns a map of the leaves of both; those of `other` take precedence."""
    return NestedMap().Update(self).Update(other)

  def FlattenItems(self) -> list[tuple[str, Any]]:
    """Returns (path, leaf) pairs in sorted key order; None is a leaf."""
    items: list[tuple[str, Any]] = []
    _map(self, '', lambda path, leaf: items.append((path, leaf)))
    return items

  def Flatten(self) -> list[Any]:
    """Returns the leaves in sorted key order."""
    return [leaf for _, leaf in self.FlattenItems()]

  def Pack(self, leaves: Iterable[Any]) -> Self:
    """Returns a map of this structure with other leaves.

    Raises:
      ValueError: the number of leaves differs.
    """
    leaves = list(leaves)
    if len(leaves) != (num_leaves := len(self.Flatten())):
      raise ValueError(f'Pack expects {num_leaves} leaves, got {len(leaves)}')
    leaf_iterator = iter(leaves)
    return self.Transform(lambda _: next(leaf_iterator))

  def Transform(self, fn: Callable[[Any], Any]) -> Self:
    """Returns a map of this structure with `fn(leaf)` for its leaves."""
    return self.TransformWithKey(lambda _, leaf: fn(leaf))

  def TransformWithKey(self, fn: Callable[[str, Any], Any]) -> Self:
    """Returns a map of this structure with `fn(path, leaf)` for its leaves."""
    return _map(self, '', fn)

  def IsCompatible(self, other: NestedMap) -> bool:
    """Whether both have the same paths to leaves."""
    return self.Keys() == other.Keys()

  def Filter(self, keep: Callable[[Any], bool]) -> Self:
    """Returns the leaves with `keep(leaf)`, without emptied containers."""
    return self.FilterKeyVal(lambda _, leaf: keep(leaf))

  def FilterKeyVal(self, keep: Callable[[str, Any], bool]) -> Self:
    """As `Filter`, with `keep(path, leaf)`."""
    result = _map(
      self, '', lambda path, leaf: leaf if keep(path, leaf) else _DROPPED
    )
    return type(self)() if result is _DROPPED else result

  def DebugString(self) -> str:
    """Returns one aligned line `path    value` per leaf, sorted."""
    return '\n'.join(self._lines())

  def VLog(self, level: int | None = None, prefix: str | None = None) -> None:
    """Logs the lines of `DebugString` at an absl verbosity level, 0 by default.

    Args:
      level: the verbosity.
      prefix: the start of each line, `nmap: ` by default.
    """
    prefix = 'nmap: ' if prefix is None else prefix
    for line in self._lines():
      logging.vlog(level or 0, '%s %s', prefix, line)

  def __deepcopy__(self, memo: dict[int, Any]) -> NestedMap:
    return type(self)({k: copy.deepcopy(v, memo) for k, v in self.items()})

  def _lines(self) -> list[str]:
    items = self.FlattenItems()
    width = max((len(path) for path, _ in items), default=0)
    return sorted(f'{path:{width}}    {leaf}' for path, leaf in items)


def _map(x: Any, path: str, fn: Callable[[str, Any], Any]) -> Any:
  """Returns `x` with `fn(path, leaf)` for its leaves.

  Leaves that become `_DROPPED` are left out, and so are containers that they
  leave empty.
  """
  result: Any
  if isinstance(x, dict):
    dot = path + '.' if path else ''
    items = {key: _map(x[key], f'{dot}{key}', fn) for key in sorted(x)}
    result = type(x)()
    result.update((k, v) for k, v in items.items() if v is not _DROPPED)
  elif isinstance(x, list):
    result = [_map(v, f'{path}[{i}]', fn) for i, v in enumerate(x)]
    result = [v for v in result if v is not _DROPPED]
  else:
    return fn(path, x)
  return _DROPPED if x and not result else result


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


def _to_state_dict(x: NestedMap) -> dict[str, Any]:
  return serialization.to_state_dict(dict(x))


def _from_state_dict(x: NestedMap, state: dict[str, Any]) -> NestedMap:
  return NestedMap(serialization.from_state_dict(dict(x), state))


serialization.register_serialization_state(
  NestedMap, _to_state_dict, _from_state_dict
)
