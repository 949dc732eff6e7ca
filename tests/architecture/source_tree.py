# SPDX-License-Identifier: Apache-2.0
"""The syntax trees of the repository, and the contract of public names."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

from tools import syntax_trees

ROOT = pathlib.Path(__file__).absolute().parents[2]
PACKAGES = ('praxis', 'pax', 'paxml')
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CONTRACT = ROOT / 'tests' / 'golden' / 'contract'


@functools.cache
def files(*folders: str) -> tuple[pathlib.Path, ...]:
  """Returns the Python files under `folders`, sorted."""
  return tuple(
    path for folder in folders for path in sorted((ROOT / folder).rglob('*.py'))
  )


@functools.cache
def parse(path: pathlib.Path) -> ast.Module:
  """Returns the syntax tree of a file."""
  return ast.parse(path.read_text())


def module_name(path: pathlib.Path) -> str:
  """Returns the dotted name of a file; a package's for its __init__.py."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


@functools.cache
def library() -> dict[str, pathlib.Path]:
  """Returns the modules of the packages that users import, by name."""
  return {module_name(path): path for path in files(*PACKAGES)}


@functools.cache
def functions_anywhere(path: pathlib.Path) -> tuple[ast.FunctionDef, ...]:
  """Returns the functions of a file, those within functions too."""
  found = [
    node
    for node in syntax_trees.statements(parse(path))
    if isinstance(node, FUNCTIONS)
  ]
  return tuple(sorted(found, key=lambda node: node.lineno))


def imported_names(path: pathlib.Path) -> Iterator[str]:
  """Yields each imported name; `from a import b` yields `a.b`."""
  for node in syntax_trees.statements(parse(path)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def imported_modules(path: pathlib.Path) -> Iterator[str]:
  """Yields the modules of the library that a file imports."""
  for name in imported_names(path):
    while name and name not in library():
      name = name.rpartition('.')[0]
    if name:
      yield name


def functions(
  body: list[ast.stmt], prefix: str = ''
) -> Iterator[tuple[str, ast.FunctionDef]]:
  """Yields functions and methods, named `Class.method` if they are methods."""
  for node in body:
    if isinstance(node, ast.ClassDef):
      yield from functions(node.body, f'{prefix}{node.name}.')
    elif isinstance(node, FUNCTIONS):
      yield f'{prefix}{node.name}', node


@functools.cache
def published_modules() -> frozenset[str]:
  """Returns the modules of praxis and paxml, paxml's also under `pax`.

  The tables leave out the base class of praxis' tests, which users' tests use.
  """
  text = ''.join(path.read_text() for path in _CONTRACT.glob('p*.txt'))
  names = set(re.findall(r'^module (\S+)', text, re.M))
  names.add('praxis.test_utils')
  return frozenset(names | {re.sub('^paxml', 'pax', name) for name in names})


@functools.cache
def published_functions() -> frozenset[str]:
  """Returns the functions and methods (`Class.method`) that upstream has."""
  text = ''.join(path.read_text() for path in _CONTRACT.glob('p*.txt'))
  return frozenset(re.findall(r'^def ([\w.]+)\(', text, re.M))


def check_empty(faults: list[str]) -> None:
  """Fails with one line per fault."""
  assert not faults, '\n'.join(faults)
