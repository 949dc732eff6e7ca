# SPDX-License-Identifier: Apache-2.0
"""Names, imports and directives of the Python files of the repository."""

from __future__ import annotations

import ast
import collections
import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

from tools import syntax_trees

# Folders with modules of this repository.
FOLDERS = (
  'benchmarks',
  'docs',
  'pax',
  'paxml',
  'praxis',
  'tests',
  'tools',
)
# Subfolders without BUILD files: the lock lacks their dependencies.
OUTSIDE = ('tests/compare', 'tests/compare/existing')
_DIRECTIVE = re.compile(r'^# bazel: *(\w+)(?:=(.*))?$')
_DIRECTIVE_LINES = 30
_DOTTED = re.compile(r'\b(?:praxis|paxml|pax|tasks|benchmarks)(?:\.\w+)+')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
  """One Python file."""

  # Relative to the root of the repository.
  path: pathlib.PurePosixPath
  # For example `praxis.layers.linears`; for an __init__.py the package.
  name: str
  # Dotted imported names, also inside functions; `from a import b` is a.b.
  imports: tuple[str, ...]
  # Dotted names in the strings of a test, which imports modules by such names.
  mentions: tuple[str, ...]
  # Whether it is a program; whether its `__getattr__` imports lazily.
  is_program: bool
  is_lazy: bool
  # Names of the classes that it registers as experiments.
  experiments: tuple[str, ...]
  # Values of `# bazel: key=value` comments in its first lines.
  directives: dict[str, list[str]]

  @property
  def package(self) -> str:
    return str(self.path.parent)

  @property
  def is_init(self) -> bool:
    return self.path.name == '__init__.py'

  @property
  def is_test(self) -> bool:
    return _is_test(self.path)


def _is_test(path: pathlib.PurePosixPath) -> bool:
  return path.name.endswith('_test.py')


def _is_type_checking(node: ast.AST) -> bool:
  return isinstance(node, ast.If) and ast.unparse(node.test).endswith(
    'TYPE_CHECKING'
  )


def _imports(tree: ast.AST) -> Iterator[str]:
  for node in syntax_trees.statements(tree, skip=_is_type_checking):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def _mentions(tree: ast.AST) -> Iterator[str]:
  for node in syntax_trees.walk(tree):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
      for name in _DOTTED.findall(node.value):
        yield f'pax.{name}' if name.startswith('tasks.') else name


def _experiments(top: list[ast.stmt]) -> Iterator[str]:
  for node in top:
    if isinstance(node, ast.ClassDef) and any(
      'experiment_registry.register' in ast.unparse(d)
      for d in node.decorator_list
    ):
      yield node.name


def _directives(text: str) -> dict[str, list[str]]:
  values = collections.defaultdict(list)
  for line in text.splitlines()[:_DIRECTIVE_LINES]:
    if match := _DIRECTIVE.match(line):
      values[match[1]].append((match[2] or '').strip())
  return dict(values)


def read(root: pathlib.Path, path: pathlib.PurePosixPath) -> Module:
  """Parses one file; a SyntaxError contains its path."""
  text = (root / path).read_text(encoding='utf-8')
  tree = ast.parse(text, filename=str(path))
  parts = path.with_suffix('').parts
  top = tree.body
  return Module(
    path=path,
    name='.'.join(parts[:-1] if parts[-1] == '__init__' else parts),
    imports=tuple(sorted(set(_imports(tree)))),
    mentions=tuple(sorted(set(_mentions(tree)))) if _is_test(path) else (),
    is_program=any(
      isinstance(n, ast.If) and '__main__' in ast.unparse(n.test) for n in top
    ),
    is_lazy=any(
      isinstance(n, ast.FunctionDef) and n.name == '__getattr__' for n in top
    ),
    experiments=tuple(_experiments(top)),
    directives=_directives(text),
  )


def modules(root: pathlib.Path) -> dict[str, Module]:
  """Returns {name: module} of all Python files in FOLDERS."""
  parsed = []
  for folder in FOLDERS:
    for path, folders, files in os.walk(root / folder):
      folders[:] = [f for f in folders if not f.startswith(('.', '__'))]
      relative = pathlib.PurePosixPath(pathlib.Path(path).relative_to(root))
      if str(relative) in OUTSIDE:
        continue
      parsed += [read(root, relative / f) for f in files if f.endswith('.py')]
  return {m.name: m for m in sorted(parsed, key=lambda m: m.path)}


def resolve(imported: str, index: dict[str, Module]) -> Module | None:
  """Returns the module of ours that `import imported` loads, or None."""
  while imported not in index:
    imported, dot, _ = imported.rpartition('.')
    if not dot:
      return None
  return index[imported]


def cycles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
  """Returns groups of nodes that reach each other (Tarjan, 1972)."""
  order: dict[str, int] = {}
  low: dict[str, int] = {}
  stack: list[str] = []
  groups: list[list[str]] = []

  def visit(node: str) -> None:
    order[node] = low[node] = len(order)
    stack.append(node)
    for other in edges.get(node, ()):
      if other not in order:
        visit(other)
        low[node] = min(low[node], low[other])
      elif other in stack:
        low[node] = min(low[node], order[other])
    if low[node] == order[node]:
      at = stack.index(node)
      if len(stack) - at > 1:
        groups.append(sorted(stack[at:]))
      del stack[at:]

  for node in edges:
    if node not in order:
      visit(node)
  return groups
