# SPDX-License-Identifier: Apache-2.0
"""Walks the syntax trees of Python files in a fraction of `ast.walk`'s time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

# What contains statements contains them here.
_BLOCKS = ('body', 'handlers', 'orelse', 'finalbody', 'cases')


def walk(root: ast.AST) -> Iterator[ast.AST]:
  """Yields a node and all below it, as `ast.walk` does and in its order."""
  pending = [root]
  for node in pending:
    yield node
    for name in node._fields:
      value = getattr(node, name, None)
      if isinstance(value, list):
        pending += [item for item in value if isinstance(item, ast.AST)]
      elif isinstance(value, ast.AST):
        pending.append(value)


def statements(
  root: ast.AST, skip: Callable[[ast.stmt], bool] = lambda node: False
) -> Iterator[ast.stmt]:
  """Yields the statements below a node, in no order.

  Args:
    root: a module, a class, a function or another statement.
    skip: whether a statement is left out with all below it.
  """
  pending = [root]
  while pending:
    node = pending.pop()
    if isinstance(node, ast.stmt) and node is not root:
      if skip(node):
        continue
      yield node
    for name in _BLOCKS:
      pending += getattr(node, name, ())
