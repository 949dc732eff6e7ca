# SPDX-License-Identifier: Apache-2.0
"""Where in a tree of Configs an object could not be built."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
from fiddle import daglish

_ATTRIBUTE = '_pax_build_location'


@dataclasses.dataclass(frozen=True)
class Location:
  """A Config within the Config of `root`."""

  root: Callable[..., Any]
  # As in `.lm_tpl.softmax_tpl`; empty for the root itself.
  path: str
  # The class that could not be built.
  cls: Callable[..., Any]

  def __str__(self) -> str:
    return f'{name_of(self.cls)} at {name_of(self.root)}{self.path}'


def location_of(error: BaseException) -> Location | None:
  """Returns where an error was raised, if that was in building an object."""
  return getattr(error, _ATTRIBUTE, None)


def locate(error: BaseException, config: Any, root: Any, path: str) -> None:
  """Attaches to `error` that `config` could not be built.

  If the constructor of `config` built other Configs and one of them failed, the
  location becomes that of the inner one.

  Args:
    error: the exception.
    config: the Config.
    root: the tree in which `path` leads to `config`.
    path: as in `Location`.
  """
  inner = location_of(error)
  if inner is None:
    location = Location(_class_of(root), path, _class_of(config))
  else:
    inner_path = path_of_class(config.__arguments__, inner.root)
    if inner_path is None:
      return
    inner_path = f'{path}{inner_path}{inner.path}'
    location = Location(_class_of(root), inner_path, inner.cls)
  attach(error, location)


def attach(error: BaseException, location: Location) -> None:
  """Attaches a location, in place of an earlier one."""
  setattr(error, _ATTRIBUTE, location)


def path_of_class(fields: Mapping[str, Any], cls: Any) -> str | None:
  """Returns the path to the nearest Config of `cls` within these fields.

  Returns None if there is none, or if several are equally near.
  """
  paths = [
    path
    for value, path in daglish.iterate(dict(fields))
    if isinstance(value, fdl.Buildable) and fdl.get_callable(value) is cls
  ]
  depth = min(map(len, paths), default=0)
  nearest = [path for path in paths if len(path) == depth]
  if len(nearest) != 1:
    return None
  field, *rest = nearest[0]
  name = field.key if isinstance(field, daglish.Key) else field
  return f'.{name}{daglish.path_str(tuple(rest))}'


def name_of(cls: Callable[..., Any]) -> str:
  """Returns the name of a class or function."""
  return getattr(cls, '__qualname__', str(cls))


def _class_of(value: Any) -> Callable[..., Any]:
  is_config = isinstance(value, fdl.Buildable)
  return fdl.get_callable(value) if is_config else type(value)
