# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: data=//:all_files
"""Docstrings of public names, shapes of layers' calls, plain vocabulary."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

from tests.architecture import source_tree

# Annotations that give no shape.
_BARE = ('Array', 'JTensor', 'jax.Array')
# Parameters above which a docstring describes them.
_MAX_UNDESCRIBED = 3
# Words that older prose of this repository used in a private sense.
_VOCABULARY = re.compile(
  r'\b(said|told|tells?(?!\()|lies?|stands?|stood|beside|reckon\w*|whatever|whoever|'
  r'whom|nobody|of which|as is|in turns)\b',
  re.IGNORECASE,
)
_MAX_VOCABULARY_LINES = 40
_PROSE = ('*.py', '*.md', '*.cc', '*.h', '*.cu', '*.sh', '*.bzl')
_PROSE_FOLDERS = (
  *source_tree.PACKAGES,
  'csrc',
  'tools',
  'benchmarks',
  'docs',
)


def public(tree: ast.Module, *kinds: type) -> Iterator[ast.stmt]:
  for node in tree.body:
    if isinstance(node, kinds) and not node.name.startswith('_'):
      yield node


def public_functions(
  body: list[ast.stmt], prefix: str = ''
) -> Iterator[tuple[str, ast.FunctionDef]]:
  """Yields public functions, and public methods of public classes."""
  for node in body:
    if getattr(node, 'name', '_').startswith('_'):
      continue
    if isinstance(node, ast.ClassDef):
      yield from public_functions(node.body, f'{prefix}{node.name}.')
    elif isinstance(node, source_tree.FUNCTIONS):
      yield f'{prefix}{node.name}', node


def without_docstring(tree: ast.Module) -> Iterator[ast.stmt]:
  for node in public(tree, ast.ClassDef, *source_tree.FUNCTIONS):
    if not ast.get_docstring(node):
      yield node


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
  """Yields the nodes of a function, nested functions left out."""
  nested = (*source_tree.FUNCTIONS, ast.Lambda, ast.ClassDef)
  for child in ast.iter_child_nodes(function):
    if not isinstance(child, nested):
      yield child
      yield from own_nodes(child)


def raises(function: ast.FunctionDef) -> bool:
  """Returns whether a body raises an error other than NotImplementedError."""
  return any(
    isinstance(node, ast.Raise)
    and node.exc is not None
    and 'NotImplementedError' not in ast.unparse(node.exc)
    for node in own_nodes(function)
  )


def inherits_docstring(function: ast.FunctionDef) -> bool:
  """Returns whether a decorator says that the docstring is elsewhere."""
  decorators = [ast.unparse(node) for node in function.decorator_list]
  return any(re.search(r'\b(override|overload)\b', d) for d in decorators)


def parameters(function: ast.FunctionDef) -> tuple[str, ...]:
  """Returns the names of the parameters but `self` and `cls`."""
  arguments = [
    *function.args.posonlyargs,
    *function.args.args,
    *function.args.kwonlyargs,
  ]
  return tuple(a.arg for a in arguments if a.arg not in ('self', 'cls'))


@functools.cache
def protocol_methods() -> frozenset[tuple[str, tuple[str, ...]]]:
  """Returns name and parameters of the methods that Protocols document."""
  return frozenset(
    (method.name, parameters(method))
    for path in source_tree.library().values()
    for cls in public(source_tree.parse(path), ast.ClassDef)
    if any(ast.unparse(base).startswith('Protocol') for base in cls.bases)
    for method in cls.body
    if isinstance(method, source_tree.FUNCTIONS)
    and 'Args:' in (ast.get_docstring(method) or '')
  )


def missing_sections(function: ast.FunctionDef) -> list[str]:
  """Returns which of 'Args' and 'Raises' a docstring lacks."""
  text = ast.get_docstring(function) or ''
  names = parameters(function)
  missing = []
  if (
    len(names) > _MAX_UNDESCRIBED
    and 'Args:' not in text
    and (function.name, names) not in protocol_methods()
  ):
    missing.append('Args')
  if raises(function) and 'Raises:' not in text:
    missing.append('Raises')
  return [] if inherits_docstring(function) else missing


def calls(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
  for cls in public(tree, ast.ClassDef):
    for node in cls.body:
      if isinstance(node, source_tree.FUNCTIONS) and node.name == '__call__':
        yield cls, node


def without_shape(call: ast.FunctionDef) -> list[str]:
  """Returns the parameters, or 'return', whose annotation gives no shape."""
  arguments = [*call.args.args, *call.args.kwonlyargs]
  annotations = {a.arg: a.annotation for a in arguments if a.arg != 'self'}
  annotations['return'] = call.returns
  return [
    name for name, annotation in annotations.items() if lacks_shape(annotation)
  ]


def lacks_shape(annotation: ast.expr | None) -> bool:
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
    and ast.unparse(node) in _BARE
    for node in ast.walk(annotation)
  )


def prose_files() -> Iterator[pathlib.Path]:
  yield source_tree.ROOT / 'README.md'
  yield source_tree.ROOT / 'CONTRIBUTING.md'
  for folder in _PROSE_FOLDERS:
    for pattern in _PROSE:
      yield from sorted((source_tree.ROOT / folder).rglob(pattern))


def test_public_names_have_docstrings():
  source_tree.check_empty(
    [
      f'{path}:{node.lineno}: {node.name} has no docstring'
      for path in source_tree.library().values()
      for node in without_docstring(source_tree.parse(path))
    ]
  )


def test_public_functions_of_pax_describe_arguments_and_errors():
  source_tree.check_empty(
    [
      f'{path}:{node.lineno}: {name} lacks {" and ".join(missing)}'
      for path in source_tree.files('pax', 'paxml')
      for name, node in public_functions(source_tree.parse(path).body)
      if (missing := missing_sections(node))
    ]
  )


def test_calls_of_layers_give_shapes():
  source_tree.check_empty(
    [
      f'{path}:{call.lineno}: {cls.name}.__call__: {", ".join(names)}'
      for path in source_tree.files('praxis/layers')
      for cls, call in calls(source_tree.parse(path))
      if (names := without_shape(call))
    ]
  )


def test_prose_uses_plain_words():
  lines = [
    f'{path}:{number}: {line.strip()}'
    for path in prose_files()
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if _VOCABULARY.search(line)
  ]
  assert len(lines) < _MAX_VOCABULARY_LINES, '\n'.join(lines)


def test_missing_docstrings_and_shapes_are_found():
  tree = ast.parse(
    'class A:\n'
    '  def __call__(self, x: Array, y, z: Float[Array, "B"] | None) -> int: 1'
  )
  assert [node.name for node in without_docstring(tree)] == ['A']
  assert [without_shape(call) for _, call in calls(tree)] == [['x', 'y']]


def test_missing_sections_are_found():
  tree = ast.parse(
    'class A:\n'
    '  def f(self, a, b, c, d):\n'
    '    """Does."""\n'
    '    raise ValueError(a)\n'
    '  def _g(self, a, b, c, d): raise ValueError(a)\n'
    'def h(a):\n'
    '  """Does."""\n'
    '  raise NotImplementedError(a)\n'
  )
  missing = {n: missing_sections(f) for n, f in public_functions(tree.body)}
  assert missing == {'A.f': ['Args', 'Raises'], 'h': []}
