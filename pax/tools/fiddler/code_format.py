# SPDX-License-Identifier: Apache-2.0
"""Breaks the long lines of generated code, an argument to a line."""

from __future__ import annotations

import ast
import itertools

_COLUMNS = 80
_INDENT = '  '


def format_code(source: str) -> str:
  """Returns the same program with short lines; its comments are lost."""
  blocks = []
  for is_import, nodes in itertools.groupby(
    ast.parse(source).body, lambda n: isinstance(n, ast.Import | ast.ImportFrom)
  ):
    texts = [_statement(node, '') for node in nodes]
    blocks.append(('\n' if is_import else '\n\n\n').join(texts))
  return '\n\n\n'.join(blocks) + '\n'


def _statement(node: ast.stmt, indent: str) -> str:
  if isinstance(node, ast.FunctionDef):
    head = f'{indent}def {node.name}({ast.unparse(node.args)}):'
    body = [_statement(child, indent + _INDENT) for child in node.body]
    return '\n'.join([head, *body])
  if isinstance(node, ast.Return) and node.value is not None:
    return f'{indent}{_expression(node.value, "return ", indent)}'
  if isinstance(node, ast.Assign):
    targets = ''.join(f'{ast.unparse(t)} = ' for t in node.targets)
    return f'{indent}{_expression(node.value, targets, indent)}'
  lines = ast.unparse(node).splitlines()
  return '\n'.join(indent + line for line in lines)


def _expression(
  node: ast.expr, before: str, indent: str, after: str = ''
) -> str:
  """`before` and the expression, broken if that and `after` do not fit."""
  text = f'{before}{ast.unparse(node)}'
  parts = _parts(node)
  if len(indent) + len(text) + len(after) <= _COLUMNS or not parts:
    return text
  left, inner, right = parts
  inside = indent + _INDENT
  lines = [
    f'{inside}{_expression(value, name, inside, ",")},\n'
    for name, value in inner
  ]
  return f'{before}{left}\n{"".join(lines)}{indent}{right}'


def _parts(
  node: ast.expr,
) -> tuple[str, list[tuple[str, ast.expr]], str] | None:
  """How an expression opens, (name, value) within, and how it closes."""
  if isinstance(node, ast.Call) and (node.args or node.keywords):
    inner = [('', arg) for arg in node.args]
    inner += [(f'{k.arg}=' if k.arg else '**', k.value) for k in node.keywords]
    return f'{ast.unparse(node.func)}(', inner, ')'
  if isinstance(node, ast.List | ast.Tuple) and node.elts:
    left, right = '[]' if isinstance(node, ast.List) else '()'
    return left, [('', element) for element in node.elts], right
  if isinstance(node, ast.Dict) and all(node.keys):
    pairs = zip(node.keys, node.values, strict=True)
    return '{', [(f'{ast.unparse(k)}: ', v) for k, v in pairs], '}'
  return None
