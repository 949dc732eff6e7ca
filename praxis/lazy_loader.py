# SPDX-License-Identifier: Apache-2.0
"""Modules that are imported when they are first used."""

from __future__ import annotations

import importlib
import logging
import types
from typing import Any


class LazyLoader(types.ModuleType):
  """Stands for a module until an attribute of it is asked for.

  Then it imports it, and puts it in its own place among the parent's globals.
  """

  def __init__(
    self,
    local_name: str,
    parent_module_globals: dict[str, Any],
    name: str,
    warning: str | None = None,
  ):
    super().__init__(name)
    self._local_name = local_name
    self._parent_module_globals = parent_module_globals
    # Logged once, when the module is imported.
    self._warning = warning

  def __getattr__(self, name: str) -> Any:
    return getattr(self._load(), name)

  def __dir__(self) -> list[str]:
    return dir(self._load())

  def __repr__(self) -> str:
    return f'<LazyLoader {self.__name__} as {self._local_name}>'

  def _load(self) -> types.ModuleType:
    module = importlib.import_module(self.__name__)
    self._parent_module_globals[self._local_name] = module
    if self._warning:
      logging.getLogger(__name__).warning(self._warning)
      self._warning = None
    # Whoever holds this object finds everything here from now on.
    self.__dict__.update(module.__dict__)
    return module
