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
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tests.architecture import source_tree
from tools import gen_build, syntax_trees

# Methods of layers that set an attribute named by their first argument.
_CREATING_CALL = re.compile('_?create_')
_IDENTIFIER = re.compile(r'[A-Za-z_]\w*')


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


def created_names(cls: ast.ClassDef) -> Iterator[ast.expr]:
  """Yields the expressions that name attributes in calls."""
  for node in syntax_trees.walk(cls):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
      if _CREATING_CALL.match(node.func.attr) and node.args:
        yield node.args[0]
      # object.__setattr__(self, name, value)
      elif node.func.attr == '__setattr__' and len(node.args) == 3:
        yield node.args[1]


def constants(cls: ast.ClassDef, module: ModuleType | None) -> set[str]:
  """Returns the identifiers in strings of a class and of its constants."""
  values: list[Any] = [
    node.value
    for node in syntax_trees.walk(cls)
    if isinstance(node, ast.Constant)
  ]
  for node in syntax_trees.walk(cls):
    if isinstance(node, (ast.Name, ast.Attribute)) and module is not None:
      path = ast.unparse(node).split('.')
      if path[-1].strip('_').isupper() and hasattr(module, path[0]):
        value = functools.reduce(
          lambda x, name: getattr(x, name, None), path, module
        )
        values += value if isinstance(value, (tuple, list, dict)) else [value]
  return {
    value
    for value in values
    if isinstance(value, str) and _IDENTIFIER.fullmatch(value)
  }


def assigned(
  cls: ast.ClassDef, module: ModuleType | None = None
) -> Iterator[str]:
  """Yields patterns of the attributes that the methods of a class set.

  Where the name of a child is computed, every identifier among the strings of
  the class counts.
  """
  for node in attributes(cls):
    if not isinstance(node.ctx, ast.Load):
      yield node.attr
  for name in created_names(cls):
    if isinstance(name, ast.Constant):
      yield name.value
    elif isinstance(name, ast.JoinedStr):
      parts = (getattr(part, 'value', None) for part in name.values)
      yield ''.join(p if isinstance(p, str) else r'\w+' for p in parts)
    else:
      yield from constants(cls, module)


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


def defines(cls: type, name: str) -> bool:
  """Returns whether a class or one of its bases defines an attribute."""
  names, patterns = _defined(cls)
  return name in names or bool(patterns.fullmatch(name))


@functools.cache
def _defined(cls: type) -> tuple[set[str], re.Pattern[str]]:
  """Returns the names of all attributes, and a pattern of computed ones."""
  names = {*dir(cls)}.union(*map(_own_names, cls.__mro__))
  computed = {name for name in names if not _IDENTIFIER.fullmatch(name)}
  return names - computed, re.compile('|'.join(computed) or '(?!)')


@functools.cache
def _own_names(cls: type) -> frozenset[str]:
  """Returns patterns of the names that a class defines, without its bases."""
  names = {*vars(cls), *inspect.get_annotations(cls)}
  node = class_nodes(cls.__module__).get(cls.__qualname__)
  if node:
    names |= set(assigned(node, sys.modules[cls.__module__]))
  return frozenset(names)


def _has_dynamic_attributes(cls: type) -> bool:
  """Returns whether a base computes attributes; flax's only reports errors."""
  return any(
    '__getattr__' in vars(base) and not base.__module__.startswith('flax.')
    for base in cls.__mro__
  )


def _import(module: str) -> ModuleType | None:
  """Returns a module; None if it needs an optional package that is missing."""
  try:
    return importlib.import_module(module)
  except ModuleNotFoundError as e:
    if e.name not in gen_build.OPTIONAL:
      raise
    return None


def undefined(module: str) -> Iterator[str]:
  """Yields the attributes that classes of `module` read without defining."""
  nodes = class_nodes(module)
  loaded = _import(module) if nodes else None
  for qualified_name, node in nodes.items():
    cls = loaded
    for name in qualified_name.split('.'):
      # A class that a decorator or an outer class's metaclass took away.
      cls = getattr(cls, name, None)
    if not isinstance(cls, type) or _has_dynamic_attributes(cls):
      continue
    for read in attributes(node):
      if isinstance(read.ctx, ast.Load) and not defines(cls, read.attr):
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


def test_children_are_defined_and_other_names_are_not():
  module = importlib.import_module('praxis.layers.transformers.transformer')
  assert defines(module.Transformer, 'ff_layer')
  assert defines(module.Transformer, 'fprop_dtype')
  assert not defines(module.Transformer, 'no_such_layer')
