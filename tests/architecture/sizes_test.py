# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: data=//:all_files
"""Sizes of files, functions and signatures."""

from __future__ import annotations

import ast
import functools

from tests.architecture import source_tree
from tools import syntax_trees

_MAX_FILE_LINES = 600
_MAX_FUNCTION_LINES = 60
_MAX_PARAMETERS = 6
_FOLDERS = (*source_tree.PACKAGES, 'tests', 'tools', 'benchmarks')


def parameters(node: ast.FunctionDef) -> list[str]:
  """Returns the names of the parameters but `self` and `cls`."""
  arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
  return [a.arg for a in arguments if a.arg not in ('self', 'cls')]


def body_lines(node: ast.FunctionDef) -> int:
  """Counts the lines of a function without its signature and docstring."""
  body = node.body[1:] if ast.get_docstring(node) else node.body
  return node.end_lineno - body[0].lineno + 1 if body else 0


@functools.cache
def subclasses() -> dict[str, set[str]]:
  """Returns the direct subclasses of each class of the library, by name."""
  direct: dict[str, set[str]] = {}
  for path in source_tree.library().values():
    for node in syntax_trees.statements(source_tree.parse(path)):
      if isinstance(node, ast.ClassDef):
        for base in node.bases:
          name = ast.unparse(base).split('[')[0].rpartition('.')[2]
          direct.setdefault(name, set()).add(node.name)
  return direct


def is_published(name: str) -> bool:
  """Returns whether upstream fixes the signature, here or in a subclass."""
  if name in source_tree.published_functions():
    return True
  cls, _, method = name.rpartition('.')
  return any(
    is_published(f'{sub}.{method}') for sub in subclasses().get(cls, ())
  )


def test_files_are_short():
  lines = {p: p.read_text().count('\n') for p in source_tree.files(*_FOLDERS)}
  source_tree.check_empty(
    [
      f'{path}: {count} lines, at most {_MAX_FILE_LINES}'
      for path, count in lines.items()
      if count > _MAX_FILE_LINES
    ]
  )


def test_functions_are_short():
  source_tree.check_empty(
    [
      f'{path}:{node.lineno}: {node.name} is longer than {_MAX_FUNCTION_LINES}'
      for path in source_tree.files(*_FOLDERS)
      for node in source_tree.functions_anywhere(path)
      if body_lines(node) > _MAX_FUNCTION_LINES
    ]
  )


def test_functions_take_few_parameters_unless_upstream_publishes_more():
  source_tree.check_empty(
    [
      f'{path}:{node.lineno}: {name} takes {parameters(node)}'
      for path in source_tree.library().values()
      for name, node in source_tree.functions(source_tree.parse(path).body)
      if len(parameters(node)) > _MAX_PARAMETERS and not is_published(name)
    ]
  )


def test_published_signatures_are_found():
  assert is_published('sample_decode')
  assert is_published('TransformerLm.__call__')
  assert not is_published('SingleTask.process')


def test_no_user_visible_asserts_or_bare_excepts():
  source_tree.check_empty(
    [
      f'{path}:{node.lineno}: {type(node).__name__}'
      for path in source_tree.library().values()
      for node in syntax_trees.walk(source_tree.parse(path))
      if isinstance(node, ast.Assert)
      or (isinstance(node, ast.ExceptHandler) and node.type is None)
    ]
  )
