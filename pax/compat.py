# SPDX-License-Identifier: Apache-2.0
"""Makes `import paxml.x` give module `pax.x`, for code written for paxml."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

_OLD = 'paxml'
_NEW = 'pax'
# Modules that have another name within.
_RENAMED = {
  'pax.tools.dump_hparams_lib': 'pax.tools.dump_hparams',
  'pax.tools.dump_input_specs_lib': 'pax.tools.dump_input_specs',
  'pax.tools.fiddle': 'pax.tools.fiddler',
  'pax.tools.validate_config_lib': 'pax.tools.validate_config',
}


def new_name(name: str) -> str:
  """Returns what is called `name` in paxml by its name here."""
  head, dot, tail = name.partition('.')
  if head != _OLD:
    return name
  name = f'{_NEW}{dot}{tail}'
  for old, new in _RENAMED.items():
    if name == old or name.startswith(f'{old}.'):
      return new + name.removeprefix(old)
  return name


class _AliasLoader(importlib.abc.Loader):
  """Hands out the module that already has another name."""

  def create_module(
    self, spec: importlib.machinery.ModuleSpec
  ) -> ModuleType | None:
    self._module = importlib.import_module(new_name(spec.name))
    self._spec = self._module.__spec__
    return self._module

  def exec_module(self, module: ModuleType) -> None:
    # The import system wrote the alias' spec over the module's own.
    module.__spec__ = self._spec


class _AliasFinder(importlib.abc.MetaPathFinder):
  """Finds `paxml` and everything under it."""

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None = None,
    target: ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    if fullname.partition('.')[0] != _OLD:
      return None
    real = importlib.util.find_spec(new_name(fullname))
    if real is None:
      return None
    return importlib.machinery.ModuleSpec(
      fullname,
      _AliasLoader(),
      origin=real.origin,
      is_package=real.submodule_search_locations is not None,
    )


def install() -> None:
  """Lets `paxml` be imported from now on; calling it again changes nothing."""
  if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
    sys.meta_path.insert(0, _AliasFinder())
