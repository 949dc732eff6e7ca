# SPDX-License-Identifier: Apache-2.0
"""Registration of containers with Fiddle: NestedMaps and dataclasses.

Fiddle builds, draws and serializes the Configs within registered containers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import fiddle as fdl
from fiddle import daglish

from praxis import nested_map

if TYPE_CHECKING:
  from _typeshed import DataclassInstance

T = TypeVar('T', bound='DataclassInstance')
Buildable = TypeVar('Buildable', bound=fdl.Buildable)
# Types of most values in Configs; they hold no Config.
_IMMUTABLE = (bool, float, int, str, type(None), type)
# Names of the fields of registered dataclasses that are frozen.
_frozen: dict[type, tuple[str, ...]] = {}

# Upstream has its own registry; here all traversals use Fiddle's.
BasicTraversal = daglish.BasicTraversal
MemoizedTraversal = daglish.MemoizedTraversal
iterate = daglish.iterate

daglish.register_node_traverser(
  nested_map.NestedMap,
  flatten_fn=lambda m: (tuple(m.values()), tuple(m)),
  unflatten_fn=lambda values, keys: nested_map.NestedMap(
    zip(keys, values, strict=True)
  ),
  path_elements_fn=lambda m: tuple(daglish.Key(key) for key in m),
)


def register_dataclass(cls: type[T]) -> type[T]:
  """Makes Fiddle traverse objects of a dataclass, and save them as JSON."""
  names = tuple(f.name for f in dataclasses.fields(cls) if f.init)
  if cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
    _frozen[cls] = names
  daglish.register_node_traverser(
    cls,
    flatten_fn=lambda x: (tuple(getattr(x, n) for n in names), None),
    unflatten_fn=lambda values, _: cls(**dict(zip(names, values, strict=True))),
    path_elements_fn=lambda _: tuple(map(daglish.Attr, names)),
  )
  return cls


def is_leaf(value: Any) -> bool:
  """Whether a value holds no Config by its type, or by those of its items."""
  if isinstance(value, (list, tuple)):
    return all(isinstance(item, _IMMUTABLE) for item in value)
  return is_immutable(value)


def is_immutable(value: Any) -> bool:
  """Whether a value is a plain one, or a frozen dataclass of plain ones."""
  if isinstance(value, _IMMUTABLE):
    return True
  names = _frozen.get(type(value))
  return names is not None and all(
    isinstance(getattr(value, name), _IMMUTABLE) for name in names
  )


def map_arguments(
  config: Buildable, new_value: Callable[[str, Any], Any]
) -> Buildable:
  """Returns a shallow copy with `new_value(name, value)` for each argument.

  Leaves stay as they are; so does `config` where no value changes: most layers
  have no arguments that change, and each is built from its Config.
  """
  changed = {}
  for name, value in config.__arguments__.items():
    if not is_leaf(value):
      new = new_value(str(name), value)
      if new is not value:
        changed[name] = new
  if not changed:
    return config
  config = copy.copy(config)
  config.__arguments__.update(changed)
  return config
