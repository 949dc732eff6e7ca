# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: data=//:all_files
"""Files that run code when they are read have one reader (docs/security.md)."""

from __future__ import annotations

import ast

import pytest

from tests.architecture import source_tree
from tools import syntax_trees

# {module: uses that run code}
_ALLOWED = {
  # Reads files that `trusted_files` has checked.
  'pax.partitioning.saved_step': {'pickle'},
  # Reads texts of the command line, and files that `trusted_files` has checked.
  'pax.runner.artifacts': {'fiddle.experimental.serialization'},
  # safe_load makes plain data, of files that `trusted_files` has checked.
  'pax.runner.experiment_files': {'yaml'},
  # Annotations of the fields of a class.
  'praxis.pax_fiddle.template_arguments': {'eval'},
}
_MODULES = (
  'cloudpickle',
  'dill',
  'fiddle.experimental.serialization',
  'joblib',
  'marshal',
  'pickle',
  'shelve',
  'torch',
  'yaml',
)
_CALLS = ('compile', 'eval', 'exec')


def uses(tree: ast.AST) -> set[str]:
  """Returns the imports and calls of a module that run code of files."""
  names = set()
  for node in syntax_trees.walk(tree):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
      names.add(str(node.module))
    elif isinstance(node, ast.Call):
      if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        names.add(node.func.id)
      names |= {
        'allow_pickle'
        for keyword in node.keywords
        if keyword.arg == 'allow_pickle'
        and ast.unparse(keyword.value) != 'False'
      }
  return names & {*_MODULES, *_CALLS, 'allow_pickle'}


def test_no_other_module_reads_code():
  found = {}
  for module, path in source_tree.library().items():
    if names := uses(source_tree.parse(path)):
      found[module] = names
  assert found == _ALLOWED


@pytest.mark.parametrize(
  ('source', 'name'),
  [
    ('import pickle', 'pickle'),
    ('from pickle import loads', 'pickle'),
    ('from fiddle.experimental import serialization', _MODULES[2]),
    ('np.load(path, allow_pickle=True)', 'allow_pickle'),
    ('exec(text)', 'exec'),
  ],
)
def test_uses_are_found(source, name):
  assert uses(ast.parse(source)) == {name}
