# SPDX-License-Identifier: Apache-2.0
"""Equality of Configs."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

_MISSING = object()


def are_equal(x: fdl.Buildable, y: fdl.Buildable) -> bool:
  """Returns whether two Configs declare the same object.

  Their values are equal, defaults included, and so are the Configs, lists and
  dictionaries that several fields share. Each is compared once; the `==` of
  Fiddle 0.3.1 takes a time that is exponential in the depth.
  """
  return x is y or _Comparison().are_equal(x, y)


class _Comparison:
  """Pairs the Configs, lists and dictionaries of two trees."""

  def __init__(self) -> None:
    # By the identity of each, which keeps it alive.
    self._left: dict[int, tuple[Any, Any]] = {}
    self._right: dict[int, tuple[Any, Any]] = {}

  def are_equal(self, x: Any, y: Any) -> bool:
    """Returns whether two values are equal, and shared in the same way."""
    if type(x) is not type(y):
      return not isinstance(x, fdl.Buildable) and bool(x == y)
    if isinstance(x, tuple):
      return self._have_equal_items(x, y)
    if not isinstance(x, fdl.Buildable | list | dict):
      return bool(x == y)
    if id(x) in self._left or id(y) in self._right:
      return self._left.get(id(x), (x, None))[1] is y
    self._left[id(x)] = self._right[id(y)] = (x, y)
    if isinstance(x, list):
      return self._have_equal_items(x, y)
    if isinstance(x, dict):
      return x.keys() == y.keys() and all(
        self.are_equal(x[key], y[key]) for key in x
      )
    return self._have_equal_arguments(x, y)

  def _have_equal_items(
    self, x: list | tuple[Any, ...], y: list | tuple[Any, ...]
  ) -> bool:
    return len(x) == len(y) and all(map(self.are_equal, x, y))

  def _have_equal_arguments(self, x: fdl.Buildable, y: fdl.Buildable) -> bool:
    if fdl.get_callable(x) != fdl.get_callable(y):
      return False
    names = dict.fromkeys((*x.__arguments__, *y.__arguments__))
    return all(
      self.are_equal(_value(x, name), _value(y, name)) for name in names
    )


def _value(config: fdl.Buildable, name: str | int) -> Any:
  """Returns the value of an argument, or its default."""
  if name in config.__arguments__:
    return config.__arguments__[name]
  return config.__signature_info__.get_default(name, _MISSING)
