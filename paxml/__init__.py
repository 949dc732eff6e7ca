# SPDX-License-Identifier: Apache-2.0
"""The module paths of paxml, so that code written for paxml runs unchanged.

A path with a file in this folder is that module; it only re-exports. Every
other path is an alias: `paxml.learners` is the module object `pax.learners`, so
that types and registries are the same under both names. Every module also has
the aliases of `pax.paxml_api.alias_names`, such as `paxml.learners.JTensor`.
"""

# bazel: data=py.typed
from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

from pax.paxml_api import alias_names

# Paths below paxml whose module has another path below pax.
_RENAMED = {
  'sgf': 'learners.stochastic_gradients',
  'tools.dump_hparams_lib': 'tools.dump_hparams',
  'tools.dump_input_specs_lib': 'tools.dump_input_specs',
  'tools.fiddle': 'tools.fiddler',
  'tools.validate_config_lib': 'tools.validate_config',
}


def _pax_name(name: str) -> str:
  """Returns the name in pax of the module `paxml.<path>`."""
  path = name.partition('.')[2]
  for old, new in _RENAMED.items():
    if path == old or path.startswith(f'{old}.'):
      path = new + path.removeprefix(old)
  return f'pax.{path}'


class _AliasedPackage(ModuleType):
  """A package of pax; its modules publish the aliases of their paths in paxml.

  `from paxml.tasks import lm` does not import `paxml.tasks.lm` if the package
  `pax.tasks` has an attribute `lm` already.
  """

  def publish_children(self, path: str) -> None:
    """Publishes the aliases of the modules of `path`, now and later."""
    paths = vars(self).setdefault('_paxml_paths', {})
    paths[path] = None
    for name, value in list(vars(self).items()):
      self._publish(path, name, value)

  def __setattr__(self, name: str, value: Any) -> None:
    super().__setattr__(name, value)
    for path in vars(self).get('_paxml_paths', ()):
      self._publish(path, name, value)

  def _publish(self, path: str, name: str, value: Any) -> None:
    is_module = isinstance(value, ModuleType)
    package = vars(self)['__name__']
    if is_module and value.__name__ == f'{package}.{name}':
      alias_names.publish_aliases(value, f'{path}.{name}')


class _AliasLoader(importlib.abc.InspectLoader):
  """Loads the module of pax under its path in paxml."""

  def create_module(
    self, spec: importlib.machinery.ModuleSpec
  ) -> ModuleType | None:
    self._path = spec.name
    self._module = importlib.import_module(_pax_name(spec.name))
    self._spec = self._module.__spec__
    return self._module

  def exec_module(self, module: ModuleType) -> None:
    # The import system has replaced the module's own spec by the alias' spec.
    module.__spec__ = self._spec
    alias_names.publish_aliases(module, self._path)
    if hasattr(module, '__path__'):
      module.__class__ = _AliasedPackage
      module.publish_children(self._path)

  def get_code(self, fullname: str) -> CodeType | None:
    """Returns the code of the module, for `python -m paxml.main`."""
    return _source_loader(fullname).get_code(_pax_name(fullname))

  def get_source(self, fullname: str) -> str | None:
    return _source_loader(fullname).get_source(_pax_name(fullname))


def _source_loader(fullname: str) -> importlib.abc.InspectLoader:
  """Returns the loader of the module of pax behind a path in paxml."""
  spec = importlib.util.find_spec(_pax_name(fullname))
  loader = spec.loader if spec else None
  if not isinstance(loader, importlib.abc.InspectLoader):
    raise ImportError(f'{fullname} has no source', name=fullname)
  return loader


class _ReExportLoader(importlib.machinery.SourceFileLoader):
  """Loads a file of this folder, with the aliases of its module."""

  def exec_module(self, module: ModuleType) -> None:
    super().exec_module(module)
    alias_names.publish_aliases(module, module.__name__)


class _Finder(importlib.abc.MetaPathFinder):
  """Finds modules below paxml: files of this folder, else aliases.

  It has to precede the finder of files, which would load a second copy of
  `pax/learners/learner.py` for `paxml.learners.learner`: the path of the alias
  `paxml.learners` is the folder `pax/learners`.
  """

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None = None,
    target: ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    top, *parents = fullname.split('.')[:-1] or ['']
    if top != __name__:
      return None
    folders = [os.path.join(folder, *parents) for folder in __path__]
    own = importlib.machinery.PathFinder.find_spec(fullname, folders)
    if own is not None and own.origin is not None:  # None: only a folder.
      if isinstance(own.loader, importlib.machinery.SourceFileLoader):
        own.loader = _ReExportLoader(own.loader.name, own.loader.path)
      return own
    module = importlib.util.find_spec(_pax_name(fullname))
    if module is None:
      return None
    return importlib.machinery.ModuleSpec(
      fullname,
      _AliasLoader(),
      origin=module.origin,
      is_package=module.submodule_search_locations is not None,
    )


sys.meta_path.insert(0, _Finder())
