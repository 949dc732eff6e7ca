# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: data=//:all_files
"""No function is written twice, up to the names of its variables."""

from __future__ import annotations

import ast
import collections
import pathlib
from collections.abc import Iterator

from tests.architecture import source_tree
from tools import syntax_trees

# Syntax nodes below which two functions may be alike by chance.
_MIN_NODES = 30
_FOLDERS = (*source_tree.PACKAGES, 'tests', 'tools', 'benchmarks')


def canonical(function: ast.FunctionDef) -> tuple[int, str]:
  """Returns the number of syntax nodes of a body, and the body as text.

  Variables are numbered in order of appearance; docstring and annotations are
  left out.
  """
  numbers: dict[str, str] = {}
  for node in syntax_trees.walk(function):
    if isinstance(node, ast.arg):
      numbers.setdefault(node.arg, f'v{len(numbers)}')
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      numbers.setdefault(node.id, f'v{len(numbers)}')
  size = 0

  def text(node: object) -> str:
    nonlocal size
    if isinstance(node, list):
      return ','.join(map(text, node))
    if not isinstance(node, ast.AST):
      return repr(node)
    # A load or store is a node, too.
    size += 1 + hasattr(node, 'ctx')
    if isinstance(node, ast.Name):
      return numbers.get(node.id, node.id)
    if isinstance(node, ast.arg):
      return numbers[node.arg]
    fields = (
      text(value)
      for name, value in ast.iter_fields(node)
      if name not in ('annotation', 'ctx')
    )
    return f'{type(node).__name__}({";".join(fields)})'

  has_docstring = ast.get_docstring(function) is not None
  body = text(function.body[has_docstring:])
  return size, body


def outline(function: ast.FunctionDef) -> tuple[object, ...]:
  """Returns what functions with the same canonical body have in common.

  That is the type of each statement, of its value and of the function that the
  value calls. It takes a fraction of the time of the body's text.
  """
  parts: list[object] = []
  for node in syntax_trees.statements(function):
    if not (
      isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ):
      expression = getattr(node, 'value', None)
      parts += [type(node), type(expression)]
      parts.append(type(getattr(expression, 'func', None)))
  return tuple(parts)


def duplicates(
  trees: dict[pathlib.Path, ast.Module],
) -> Iterator[str]:
  """Yields functions of several places whose bodies are the same."""
  alike = collections.defaultdict(list)
  for path, tree in trees.items():
    for node in syntax_trees.statements(tree):
      if isinstance(node, source_tree.FUNCTIONS):
        place = f'{path}:{node.lineno}: {node.name}'
        alike[outline(node)].append((place, node))
  for functions in alike.values():
    if len(functions) == 1:
      continue
    places = collections.defaultdict(list)
    for place, node in functions:
      size, body = canonical(node)
      if size >= _MIN_NODES:
        places[body].append(place)
    for same in places.values():
      if len(same) > 1:
        yield ' = '.join(same)


def test_no_function_is_written_twice():
  trees = {p: source_tree.parse(p) for p in source_tree.files(*_FOLDERS)}
  source_tree.check_empty(sorted(duplicates(trees)))


_FUNCTION = """
def weighted_mean(values, weights):
  \'\'\'Returns the mean.\'\'\'
  total = sum(v * w for v, w in zip(values, weights, strict=True))
  return total / max(sum(weights), 1e-6)
"""
_RENAMED = """
def average(xs: list[float], ws: list[float]) -> float:
  summed = sum(x * y for x, y in zip(xs, ws, strict=True))
  return summed / max(sum(ws), 1e-6)
"""


def test_duplicates_are_found():
  first, second = pathlib.Path('first.py'), pathlib.Path('second.py')
  trees = {first: ast.parse(_FUNCTION), second: ast.parse(_RENAMED)}
  assert len(list(duplicates(trees))) == 1
  trees[second] = ast.parse(_RENAMED.replace('1e-6', '1e-5'))
  assert not list(duplicates(trees))
