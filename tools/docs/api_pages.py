# SPDX-License-Identifier: Apache-2.0
"""Pages of the API reference, from docstrings; imports none of the modules.

A package has one page in MyST Markdown: its modules, their functions and
classes with docstrings, and the fields of classes with the comments above them.
Private names and modules without public definitions are left out.
"""

from __future__ import annotations

import ast
import collections
import pathlib
import re
import textwrap
from collections.abc import Iterable
from typing import TypeGuard

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

# Sections of Google-style docstrings, and their names in field lists.
_SECTIONS = {
  'Args:': 'param ',
  'Raises:': 'raises ',
  'Returns:': 'returns',
  'Yields:': 'yields',
}
_ENTRY = re.compile(r'\*{0,2}([\w.]+)(?: \([^)]*\))?: +(.*)', re.DOTALL)
_MARKUP = re.compile(r'([\\*_<>\[\]{}$|#~^])')


def pages(
  root: pathlib.Path, packages: Iterable[str], excluded: Iterable[str] = ()
) -> dict[str, str]:
  """Returns {page name: text} of the reference, with its index page.

  Args:
    root: the root of the source tree.
    packages: top-level packages to describe.
    excluded: packages below them to leave out.
  """
  texts = collections.defaultdict(list)
  for top in packages:
    for path in sorted((root / top).rglob('*.py')):
      module = '.'.join(path.relative_to(root).with_suffix('').parts)
      module = module.removesuffix('.__init__')
      if any(f'{module}.'.startswith(f'{name}.') for name in excluded):
        continue
      is_package = path.name == '__init__.py'
      page = module if is_package else module.rpartition('.')[0]
      if text := _module_text(module, path.read_text(), is_package):
        texts[page].append(text)
  result = {
    f'api/{name}': f'# {name}\n\n' + '\n'.join(parts)
    for name, parts in texts.items()
    if any(':::' in part for part in parts)
  }
  listing = '\n'.join(name.removeprefix('api/') for name in sorted(result))
  result['api/index'] = (
    '# API reference\n\nModules by package; the [module index](py-modindex)'
    ' lists all of them.\n\n'
    f'```{{toctree}}\n:maxdepth: 1\n\n{listing}\n```\n'
  )
  return result


def _module_text(name: str, source: str, is_package: bool) -> str:
  """Returns the section of one module; empty if there is nothing public."""
  tree = ast.parse(source)
  lines = source.splitlines()
  public = [n for n in tree.body if _is_public(n)]
  if not public and not is_package:
    return ''
  parts = [] if is_package else [f'## {name}\n']
  if public:
    parts.append(f':::{{py:module}} {name}\n:::\n')
  parts.append(markdown(ast.get_docstring(tree)))
  if is_package and (names := _exports(tree, name.partition('.')[0])):
    parts.append(f'Names of the package: {names}.\n')
  parts += [_definition(node, lines) for node in public]
  return '\n'.join(filter(None, parts)) + '\n'


def _exports(tree: ast.Module, top: str) -> str:
  """Returns the names that an `__init__.py` re-exports from its modules."""
  names = [
    alias.asname or alias.name
    for node in tree.body
    if isinstance(node, ast.ImportFrom) and (node.module or '').startswith(top)
    for alias in node.names
  ]
  return ', '.join(f'`{name}`' for name in names if not name.startswith('_'))


def _is_public(node: ast.stmt) -> TypeGuard[Definition]:
  """Returns whether a statement defines something to describe.

  The implementation of an overloaded function stands for its overloads.
  """
  return (
    isinstance(node, Definition)
    and not node.name.startswith('_')
    and 'overload' not in _decorators(node)
  )


def _definition(node: Definition, lines: list[str]) -> str:
  """Returns the directive of a function, or of a class with its methods."""
  if isinstance(node, ast.ClassDef):
    bases = ', '.join(map(ast.unparse, node.bases))
    head = f'::::{{py:class}} {node.name}'
    body = [f'Bases: `{bases}`\n'] if bases else []
    body += [markdown(ast.get_docstring(node)), _fields(node, lines)]
    body += [_function(n, 'method') for n in node.body if _is_method(n)]
    return '\n'.join([head, '', *filter(None, body), '::::\n'])
  return _function(node, 'function')


def _is_method(node: ast.stmt) -> TypeGuard[Function]:
  """Returns whether a statement of a class body is a method to describe."""
  if not _is_public(node) or isinstance(node, ast.ClassDef):
    return False
  # A property is described where it is read.
  return not any(d.endswith(('.setter', '.deleter')) for d in _decorators(node))


def _decorators(node: Definition) -> list[str]:
  return [ast.unparse(decorator) for decorator in node.decorator_list]


def _function(node: Function, kind: str) -> str:
  """Returns the directive of a function, a method or a property."""
  decorators = _decorators(node)
  arguments = f'({ast.unparse(_without_self(node, kind))})'
  returned = f' -> {ast.unparse(node.returns)}' if node.returns else ''
  options = [
    f':{d}:' for d in ('classmethod', 'staticmethod') if d in decorators
  ]
  if any(d.endswith('property') for d in decorators):
    kind, arguments, returned = 'property', '', ''
    options = [f':type: {ast.unparse(node.returns)}'] if node.returns else []
  head = f':::{{py:{kind}}} {node.name}{arguments}{returned}'
  body = markdown(ast.get_docstring(node))
  return '\n'.join([' '.join(head.split()), *options, '', body, ':::\n'])


def _without_self(node: Function, kind: str) -> ast.arguments:
  arguments = node.args
  first = [*arguments.posonlyargs, *arguments.args][:1]
  if kind == 'method' and first and first[0].arg in ('self', 'cls'):
    (arguments.posonlyargs or arguments.args).pop(0)
  return arguments


def _fields(node: ast.ClassDef, lines: list[str]) -> str:
  """Returns a list of the annotated fields of a class, with their comments."""
  items = []
  for field in node.body:
    if not isinstance(field, ast.AnnAssign):
      continue
    name = ast.unparse(field.target)
    code = f'{name}: {ast.unparse(field.annotation)}'
    if field.value is not None and len(text := ast.unparse(field.value)) < 60:
      code += f' = {text}'
    comment = escape(_comment_above(field.lineno, lines))
    if not name.startswith('_'):
      items.append(f'- `{code}`' + (f': {comment}' if comment else '') + '\n')
  return ''.join(items)


def _comment_above(lineno: int, lines: list[str]) -> str:
  """Returns the comment that ends above a line, which counts from 1."""
  comment: list[str] = []
  for line in reversed(lines[: lineno - 1]):
    if not line.strip().startswith('#'):
      break
    comment.insert(0, line.strip().lstrip('#').strip())
  return ' '.join(comment)


def markdown(docstring: str | None) -> str:
  """Returns a docstring as Markdown, sections of arguments as field lists."""
  blocks = []
  for block in filter(None, re.split(r'\n\s*\n', docstring or '')):
    first, _, rest = block.partition('\n')
    if first in _SECTIONS:
      blocks.append(_field_list(_SECTIONS[first], rest))
    elif all(line.startswith('    ') for line in block.splitlines()):
      blocks.append(f'```text\n{textwrap.dedent(block)}\n```')
    else:
      blocks.append(_paragraph(block))
  return '\n\n'.join(blocks) + '\n' if docstring else ''


def _paragraph(block: str) -> str:
  """Returns a paragraph; items of a list stay lines of their own."""
  return '\n'.join(escape(line.strip()) for line in block.splitlines())


def _field_list(kind: str, text: str) -> str:
  """Returns `:param x: ...` and the like of the lines of one section."""
  text = textwrap.dedent(text)
  if kind in ('returns', 'yields'):
    return f':{kind}: {escape(" ".join(text.split()))}'
  entries = []
  for entry in re.split(r'\n(?=\S)', text):
    match = _ENTRY.fullmatch(entry)
    name, description = match.groups() if match else ('', entry)
    entries.append(f':{kind}{name}: {escape(" ".join(description.split()))}')
  return '\n'.join(entries)


def escape(text: str) -> str:
  """Returns text with Markdown's special characters escaped, except in code."""
  spans = re.split(r'(`[^`]+`)', text)
  spans[::2] = [_MARKUP.sub(r'\\\1', span) for span in spans[::2]]
  return ''.join(spans)
