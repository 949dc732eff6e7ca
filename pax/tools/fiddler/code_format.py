# SPDX-License-Identifier: Apache-2.0
"""Breaks long lines of generated code, with one argument per line."""

from __future__ import annotations

import ast
import itertools

_COLUMNS = 80
_INDENT = '  '


def format_code(source: str) -> str:
  """Returns the same program with short lines; comments are lost."""
  blocks = []
  for is_import, nodes in itertools.groupby(
    ast.parse(source).body, lambda n: isinstance(n, ast.Import | ast.ImportFrom)
  ):
    texts = [_format_statement(node, '') for node in nodes]
    blocks.append(('\n' if is_import else '\n\n\n').join(texts))
  return '\n\n\n'.join(blocks) + '\n'


def _format_statement(node: ast.stmt, indent: str) -> str:
  if isinstance(node, ast.FunctionDef):
    head = f'{indent}def {node.name}({ast.unparse(node.args)}):'
    body = [_format_statement(child, indent + _INDENT) for child in node.body]
    return '\n'.join([head, *body])
  if isinstance(node, ast.Return) and node.value is not None:
    return f'{indent}{_format_expression(node.value, "return ", indent)}'
  if isinstance(node, ast.Assign):
    targets = ''.join(f'{ast.unparse(t)} = ' for t in node.targets)
    return f'{indent}{_format_expression(node.value, targets, indent)}'
  lines = ast.unparse(node).splitlines()
  return '\n'.join(indent + line for line in lines)


def _format_expression(
  node: ast.expr, prefix: str, indent: str, suffix: str = ''
) -> str:
  """The expression after `prefix`, broken if it does not fit with `suffix`."""
  text = f'{prefix}{ast.unparse(node)}'
  parts = _split_brackets(node)
  if len(indent) + len(text) + len(suffix) <= _COLUMNS or not parts:
    return text
  opening, elements, closing = parts
  inner_indent = indent + _INDENT
  lines = [
    f'{inner_indent}{_format_expression(value, name, inner_indent, ",")},\n'
    for name, value in elements
  ]
  return f'{prefix}{opening}\n{"".join(lines)}{indent}{closing}'


def _split_brackets(
  node: ast.expr,
) -> tuple[str, list[tuple[str, ast.expr]], str] | None:
  """The opening text, (prefix, value) of each element, and the closing text."""
  if isinstance(node, ast.Call) and (node.args or node.keywords):
    elements = [('', arg) for arg in node.args]
    elements += [
      (f'{k.arg}=' if k.arg else '**', k.value) for k in node.keywords
    ]
    return f'{ast.unparse(node.func)}(', elements, ')'
  if isinstance(node, ast.List | ast.Tuple) and node.elts:
    opening, closing = '[]' if isinstance(node, ast.List) else '()'
    return opening, [('', element) for element in node.elts], closing
  if isinstance(node, ast.Dict) and all(node.keys):
    pairs = zip(filter(None, node.keys), node.values, strict=True)
    return '{', [(f'{ast.unparse(k)}: ', v) for k, v in pairs], '}'
  return None
