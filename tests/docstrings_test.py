# SPDX-License-Identifier: Apache-2.0
# bazel: data=//:all_files
"""Everything public in praxis says what it is, and layers say their shapes."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).absolute().parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Annotations that tell nothing of a shape.
BARE = ('Array', 'JTensor', 'jax.Array')


def trees(folder: str) -> Iterator[tuple[pathlib.Path, ast.Module]]:
  for path in sorted((ROOT / folder).rglob('*.py')):
    yield path.relative_to(ROOT), ast.parse(path.read_text())


def public(tree: ast.Module, *kinds: type) -> Iterator[ast.stmt]:
  for node in tree.body:
    if isinstance(node, kinds) and not node.name.startswith('_'):
      yield node


def without_docstring(tree: ast.Module) -> Iterator[ast.stmt]:
  for node in public(tree, ast.ClassDef, *FUNCTIONS):
    if not ast.get_docstring(node):
      yield node


def calls(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
  for cls in public(tree, ast.ClassDef):
    for node in cls.body:
      if isinstance(node, FUNCTIONS) and node.name == '__call__':
        yield cls, node


def without_shape(call: ast.FunctionDef) -> list[str]:
  """Returns which arguments, or 'return', tell too little."""
  arguments = [*call.args.args, *call.args.kwonlyargs]
  said = {a.arg: a.annotation for a in arguments if a.arg != 'self'}
  said['return'] = call.returns
  return [
    name for name, annotation in said.items() if tells_too_little(annotation)
  ]


def tells_too_little(annotation: ast.expr | None) -> bool:
  if annotation is None:
    return True
  shaped = {
    id(node)
    for subscript in ast.walk(annotation)
    if isinstance(subscript, ast.Subscript)
    and isinstance(subscript.slice, ast.Tuple)
    and isinstance(subscript.slice.elts[-1], ast.Constant)
    for node in ast.walk(subscript)
  }
  return any(
    isinstance(node, (ast.Name, ast.Attribute))
    and id(node) not in shaped
    and ast.unparse(node) in BARE
    for node in ast.walk(annotation)
  )


def test_everything_public_has_a_docstring():
  found = [
    f'{path}:{node.lineno}: {node.name} has no docstring'
    for path, tree in trees('praxis')
    for node in without_docstring(tree)
  ]
  assert not found, '\n'.join(found)


def test_calls_of_layers_say_their_shapes():
  found = [
    f'{path}:{call.lineno}: {cls.name}.__call__: {", ".join(names)}'
    for path, tree in trees('praxis/layers')
    for cls, call in calls(tree)
    if (names := without_shape(call))
  ]
  assert not found, '\n'.join(found)


def test_what_is_missing_is_seen():
  tree = ast.parse(
    'class A:\n'
    '  def __call__(self, x: Array, y, z: Float[Array, "B"] | None) -> int: 1'
  )
  assert [node.name for node in without_docstring(tree)] == ['A']
  assert [without_shape(call) for _, call in calls(tree)] == [['x', 'y']]
