# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: data=//:all_files
# bazel: deps=//tools/wheel:pax_modules
# bazel: deps=//tools/wheel:praxis_modules
# bazel: deps=//paxml:modules
"""A class reads only the attributes that it or one of its bases defines."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator

from tests.architecture import source_tree

# Methods of BaseLayer that set an attribute named by their first argument.
_DEFINING_CALLS = ('create_child', 'create_children', 'create_variable')


def _is_self(node: ast.expr) -> bool:
  return isinstance(node, ast.Name) and node.id == 'self'


def attributes(cls: ast.ClassDef) -> Iterator[ast.Attribute]:
  """Yields `self.x` in the methods of a class, nested classes left out."""
  pending: list[ast.AST] = list(cls.body)
  while pending:
    node = pending.pop()
    if isinstance(node, ast.ClassDef):
      continue
    if isinstance(node, ast.Attribute) and _is_self(node.value):
      yield node
    pending.extend(ast.iter_child_nodes(node))


def assigned(cls: ast.ClassDef) -> Iterator[str]:
  """Yields the attributes that the methods of a class set."""
  for node in attributes(cls):
    if not isinstance(node.ctx, ast.Load):
      yield node.attr
  for node in ast.walk(cls):
    if (
      isinstance(node, ast.Call)
      and isinstance(node.func, ast.Attribute)
      and node.func.attr in _DEFINING_CALLS
      and node.args
      and isinstance(node.args[0], ast.Constant)
    ):
      yield node.args[0].value


@functools.cache
def class_nodes(module: str) -> dict[str, ast.ClassDef]:
  """Returns the classes of a module of the library by qualified name."""
  nodes: dict[str, ast.ClassDef] = {}

  def visit(body: list[ast.stmt], prefix: str) -> None:
    for node in body:
      if isinstance(node, ast.ClassDef):
        nodes[prefix + node.name] = node
        visit(node.body, f'{prefix}{node.name}.')

  if path := source_tree.library().get(module):
    visit(source_tree.parse(path).body, '')
  return nodes


@functools.cache
def defined(cls: type) -> frozenset[str]:
  """Returns the names that a class and its bases define."""
  names = set(dir(cls))
  for base in cls.__mro__:
    names |= set(inspect.get_annotations(base))
    node = class_nodes(base.__module__).get(base.__qualname__)
    if node:
      names |= set(assigned(node))
  return frozenset(names)


def undefined(module: str) -> Iterator[str]:
  """Yields the attributes that classes of `module` read without defining."""
  nodes = class_nodes(module)
  loaded = importlib.import_module(module) if nodes else None
  for qualified_name, node in nodes.items():
    cls = loaded
    for name in qualified_name.split('.'):
      # A class that a decorator or an outer class's metaclass took away.
      cls = getattr(cls, name, None)
    if not isinstance(cls, type) or hasattr(cls, '__getattr__'):
      continue
    for read in attributes(node):
      if isinstance(read.ctx, ast.Load) and read.attr not in defined(cls):
        path = source_tree.library()[module]
        yield f'{path}:{read.lineno}: {qualified_name} reads self.{read.attr}'


def test_classes_read_only_what_they_define():
  source_tree.check_empty(
    [fault for module in source_tree.library() for fault in undefined(module)]
  )


def test_attributes_are_found():
  tree = ast.parse(
    'class A:\n'
    '  def setup(self):\n'
    '    self.create_child("ffn", tpl)\n'
    '    self.x = self.y\n'
  )
  assert sorted(assigned(tree.body[0])) == ['ffn', 'x']
  assert sorted(a.attr for a in attributes(tree.body[0])) == [
    'create_child',
    'x',
    'y',
  ]
