# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: data=//:all_files
"""Which module may import which: layers, cycles, and modules without a user."""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Iterable

from pax.tools import catalog
from tests.architecture import source_tree
from tools import layers, pyimports

# Packages whose modules each have an idea of their own; every other package is
# one node of the graph of packages.
_NAMESPACES = ('praxis', 'pax', 'paxml', 'praxis.layers')

Graph = dict[str, set[str]]


def package_of(module: str) -> str:
  """Returns the node of a module in the graph of packages."""
  namespace = max(
    (n for n in _NAMESPACES if module.startswith(f'{n}.')), key=len, default=''
  )
  if not namespace:
    return module
  return f'{namespace}.{module[len(namespace) + 1 :].split(".")[0]}'


def module_graph() -> Graph:
  """Returns the modules of the library and what each imports.

  An `__init__.py` imports in order to re-export: it has no edges out.
  """
  return {
    module: {name for name in source_tree.imported_modules(path)} - {module}
    for module, path in source_tree.library().items()
    if path.name != '__init__.py'
  }


def package_graph() -> Graph:
  graph: Graph = {}
  for module, imported in module_graph().items():
    node = package_of(module)
    successors = graph.setdefault(node, set())
    successors |= {package_of(name) for name in imported} - {node}
  return graph


def experiments(path: pathlib.Path) -> bool:
  return 'experiment_registry.register' in path.read_text()


def entry_points() -> set[str]:
  """Returns the modules of the commands that `pip install` adds."""
  project = tomllib.loads((source_tree.ROOT / 'pyproject.toml').read_text())
  return {
    target.split(':')[0] for target in project['project']['scripts'].values()
  }


def without_users(importers: Iterable[pathlib.Path]) -> list[str]:
  """Returns modules that nothing imports, runs, or finds by a public name."""
  imported = {
    name for path in importers for name in source_tree.imported_modules(path)
  }
  commands = entry_points()
  return [
    module
    for module, path in source_tree.library().items()
    if path.name != '__init__.py'
    and module not in imported
    and module not in source_tree.published_modules()
    and not module.startswith('paxml.')
    and module.removeprefix('pax.tools.') not in catalog.TOOLS
    and not experiments(path)
    and module not in commands
  ]


def test_modules_import_their_own_layer_or_lower():
  faults = (
    layers.violation(module, name)
    for module, path in source_tree.library().items()
    for name in source_tree.imported_names(path)
  )
  source_tree.check_empty(sorted({fault for fault in faults if fault}))


def test_every_module_is_in_a_layer():
  source_tree.check_empty(
    [
      f'{path}: add {module} to tools/layers.py'
      for module, path in source_tree.library().items()
      if module not in source_tree.PACKAGES and layers.level(module) is None
    ]
  )


def test_layers_name_modules_that_exist():
  source_tree.check_empty(
    [
      f'tools/layers.py: no module {name}'
      for layer in layers.LAYERS
      for name in layer.modules
      if name not in source_tree.library()
      and not (source_tree.ROOT / name.replace('.', '/')).is_dir()
    ]
  )


def test_upward_imports_are_faults():
  assert layers.violation('praxis.base_layer.layer', 'pax.runner.options')
  assert layers.violation('pax.tasks.lm.params.x', 'pax.programs.train')
  assert layers.violation('pax.runner', 'tensorflow.data')
  assert not layers.violation('pax.runner', 'praxis.base_layer')


def test_no_cycles_between_modules():
  source_tree.check_empty(
    [' <-> '.join(g) for g in pyimports.cycles(module_graph())]
  )


def test_no_cycles_between_packages():
  source_tree.check_empty(
    [' <-> '.join(g) for g in pyimports.cycles(package_graph())]
  )


def test_cycles_are_found():
  graph = {'a': {'b'}, 'b': {'c'}, 'c': {'a', 'd'}, 'd': {'e'}, 'e': set()}
  assert pyimports.cycles(graph) == [['a', 'b', 'c']]
  assert package_of('praxis.layers.moe.gating') == 'praxis.layers.moe'
  assert package_of('pax.tools.launching.job') == 'pax.tools'
  assert len(module_graph()) > 300
  assert len(package_graph()) > 50


def test_every_module_has_a_user():
  source_tree.check_empty(
    [
      f'{module}: nothing imports it, and upstream has no such module'
      for module in without_users(source_tree.files(*source_tree.PACKAGES))
    ]
  )


def test_modules_without_users_are_found():
  assert 'pax.runner.runner' in without_users([])


def test_the_documented_diagram_is_the_generated_one():
  assert layers.documented_diagram() == layers.diagram(), (
    'run: python3 tools/layers.py'
  )
