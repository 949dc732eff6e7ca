# SPDX-License-Identifier: Apache-2.0
"""Modules that are imported at the first access, or if they exist."""

from __future__ import annotations

import importlib
import logging
import types
from collections.abc import Callable
from typing import Any, cast

_log = logging.getLogger(__name__)


def import_if_exists(name: str) -> types.ModuleType | None:
  """Returns a module, None if it or one of its packages does not exist.

  Raises:
    ImportError: a module that it imports does not exist.
  """
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as e:
    if is_absent(name, e):
      return None
    raise


def import_function(name: str, setting: str) -> Callable[..., Any]:
  """Returns the function `module:function`.

  Args:
    name: the function.
    setting: what names it, for messages.

  Raises:
    ValueError: there is no such function, or it cannot be called.
  """
  module, _, function = name.partition(':')
  owner = import_if_exists(module) if module else None
  found = getattr(owner, function, None)
  if found is None:
    missing = f'module {module!r}' if owner is None else f'{function!r} in it'
    raise ValueError(
      f'{setting} must be module:function, got {name!r}; there is no {missing}'
    )
  if not callable(found):
    raise ValueError(
      f'{setting} must be module:function, got {name!r}, which is a'
      f' {type(found).__name__}; name a function'
    )
  return cast(Callable[..., Any], found)


def is_absent(module: str, error: ModuleNotFoundError) -> bool:
  """Whether the missing module is `module` or one of its packages."""
  return module == error.name or module.startswith(f'{error.name}.')


class LazyLoader(types.ModuleType):
  """A placeholder that imports its module at the first attribute access.

  The import also rebinds the name in the parent's globals, so that later
  accesses there go straight to the module.
  """

  def __init__(
    self,
    local_name: str,
    parent_module_globals: dict[str, Any],
    name: str,
    warning: str | None = None,
  ):
    """Creates a placeholder.

    Args:
      local_name: the variable of the parent module that holds the placeholder.
      parent_module_globals: `globals()` of the parent module.
      name: the full name of the module to import.
      warning: logged once, when the module is imported.
    """
    super().__init__(name)
    self._binding = parent_module_globals, local_name
    self._warning = warning

  def __getattr__(self, name: str) -> Any:
    return getattr(self._import(), name)

  def __dir__(self) -> list[str]:
    return dir(self._import())

  def __repr__(self) -> str:
    return f'<LazyLoader {self.__name__} as {self._binding[1]}>'

  def _import(self) -> types.ModuleType:
    module = importlib.import_module(self.__name__)
    namespace, local_name = self._binding
    namespace[local_name] = module
    # Other references to the placeholder find the attributes without an import.
    vars(self).update(vars(module))
    if self._warning is not None:
      _log.warning(self._warning)
      self._warning = None
    return module
