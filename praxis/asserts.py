# SPDX-License-Identifier: Apache-2.0
"""Assertions whose messages contain the caller's argument expressions.

`asserts.eq(p.dims, 3)` raises "`p.dims=4` must be equal to `3`.". `value_str`
replaces the expression, `msg` the message, `exception_type` the ValueError.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import operator
import types
from collections.abc import Callable, Container
from typing import Any

import jax

from praxis.nested_map import NestedMap
from praxis.py_utils.process_state import ThreadLocalStack

_contexts = ThreadLocalStack()


@dataclasses.dataclass
class AssertsContext:
  """Disables or enables the assertions within a `with` block."""

  enabled: bool = True

  def __enter__(self) -> AssertsContext:
    _contexts.stack.append(self)
    return self

  def __exit__(self, *exc_info: Any) -> None:
    _contexts.stack.pop()

  @staticmethod
  def assertions_enabled() -> bool:
    """Whether the innermost context enables assertions; True outside any."""
    return not _contexts.stack or _contexts.stack[-1].enabled


def _unary(
  name: str, holds: Callable[[Any], bool], text: str
) -> Callable[..., None]:
  """Returns an assertion on one value."""

  def assertion(
    value: Any,
    *,
    value_str: str | None = None,
    msg: str | None = None,
    exception_type: type[Exception] = ValueError,
  ) -> None:
    if AssertsContext.assertions_enabled() and not holds(value):
      described = value_str or _describe(value, 0)
      raise exception_type(msg or f'`{described}` {text}')

  assertion.__doc__ = f'Raises unless the value {text}'
  assertion.__name__ = assertion.__qualname__ = name
  return assertion


def _binary(
  name: str, holds: Callable[[Any, Any], bool], text: str
) -> Callable[..., None]:
  """Returns an assertion on two values."""

  def assertion(
    value1: Any,
    value2: Any,
    *,
    value_str1: str | None = None,
    value_str2: str | None = None,
    msg: str | None = None,
    exception_type: type[Exception] = ValueError,
  ) -> None:
    if AssertsContext.assertions_enabled() and not holds(value1, value2):
      described1 = value_str1 or _describe(value1, 0)
      described2 = value_str2 or _describe(value2, 1)
      raise exception_type(msg or f'`{described1}` {text} `{described2}`.')

  assertion.__doc__ = f'Raises unless the first value {text} the second.'
  assertion.__name__ = assertion.__qualname__ = name
  return assertion


none = _unary('none', lambda v: v is None, 'must be `None`.')
not_none = _unary('not_none', lambda v: v is not None, 'must not be `None`.')
eq = _binary('eq', operator.eq, 'must be equal to')
ne = _binary('ne', operator.ne, 'must not be equal to')
le = _binary('le', operator.le, 'must be less than or equal to')
lt = _binary('lt', operator.lt, 'must be strictly less than')
ge = _binary('ge', operator.ge, 'must be greater than or equal to')
gt = _binary('gt', operator.gt, 'must be strictly greater than')


def instance(
  value: Any,
  instances: type | tuple[type, ...],
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
) -> None:
  """Raises unless the value is of one of the types."""
  if AssertsContext.assertions_enabled() and not isinstance(value, instances):
    described = value_str or _describe(value, 0)
    raise exception_type(msg or f'`{described}` must be of type `{instances}`.')


def subclass(
  value: type,
  subclasses: type | tuple[type, ...],
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
) -> None:
  """Raises unless the class derives from one of the classes."""
  if AssertsContext.assertions_enabled() and not issubclass(value, subclasses):
    described = value_str or _describe(value, 0)
    raise exception_type(
      msg or f'`{described}` must be a subclass of `{subclasses}`.'
    )


def in_set(
  value: Any,
  elements: Container[Any],
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
) -> None:
  """Raises unless the value is in the container."""
  if AssertsContext.assertions_enabled() and value not in elements:
    described = value_str or _describe(value, 0)
    raise exception_type(msg or f'`{described}` must be within `{elements}`.')


def between(
  value: Any,
  min_value: Any,
  max_value: Any,
  *,
  left_strict: bool = False,
  right_strict: bool = False,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
) -> None:
  """Raises unless the value is in an interval; strict bounds are excluded."""
  above = value > min_value if left_strict else value >= min_value
  below = value < max_value if right_strict else value <= max_value
  if AssertsContext.assertions_enabled() and not (above and below):
    described = value_str or _describe(value, 0)
    left, right = '(['[not left_strict], ')]'[not right_strict]
    raise exception_type(
      msg
      or f'`{described}` must be in the range '
      f'`{left}{min_value}, {max_value}{right}`.'
    )


def assert_same_structure(
  x: Any,
  y: Any,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
) -> None:
  """Raises unless two trees of dicts, lists and tuples have equal structure."""
  if not AssertsContext.assertions_enabled():
    return
  is_leaf = lambda value: not isinstance(value, dict | list | tuple)

  def structure(tree: Any) -> Any:
    plain = tree.ToNestedDict() if isinstance(tree, NestedMap) else tree
    return jax.tree.structure(plain, is_leaf)

  first, second = structure(x), structure(y)
  if first != second:
    raise exception_type(
      msg or f'Not the same structure: `{first}` and `{second}`'
    )


def _describe(value: Any, index: int) -> str:
  """Returns `expression=value` for an argument of the assertion."""
  assertion = inspect.currentframe()
  for _ in range(2):
    assertion = assertion.f_back if assertion else None
  text = _argument(assertion, index)
  return str(value) if text in (None, repr(value)) else f'{text}={value}'


def _argument(frame: types.FrameType | None, index: int) -> str | None:
  """Returns the source of an argument of the frame's current call, or None."""
  positions = inspect.getframeinfo(frame).positions if frame else None
  if frame is None or positions is None:
    return None
  first, last = positions.lineno, positions.end_lineno
  if first is None or last is None:
    return None
  lines = [
    linecache.getline(frame.f_code.co_filename, i).encode()
    for i in range(first, last + 1)
  ]
  lines[-1] = lines[-1][: positions.end_col_offset]
  lines[0] = lines[0][positions.col_offset :]
  try:
    call = ast.parse(b''.join(lines).decode().strip(), mode='eval').body
    return ast.unparse(call.args[index]) if isinstance(call, ast.Call) else None
  except (SyntaxError, IndexError):
    return None  # The source is not available, or the value is a keyword.
