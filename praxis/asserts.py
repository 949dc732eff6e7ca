# SPDX-License-Identifier: Apache-2.0
"""Checks of values that raise errors which name what was checked.

`asserts.eq(p.dims, 3)` raises "`p.dims=4` must be equal to `3`."; the text of
the arguments is read from the caller's source. `value_str` replaces it, `msg`
the whole message, `exception_type` the ValueError.
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
  """Turns checks off, or on again, within a `with`."""

  enabled: bool = True

  def __enter__(self) -> AssertsContext:
    _contexts.stack.append(self)
    return self

  def __exit__(self, *exc_info: Any) -> None:
    _contexts.stack.pop()

  @staticmethod
  def assertions_enabled() -> bool:
    """Whether checks are on here: what the innermost context says."""
    return not _contexts.stack or _contexts.stack[-1].enabled


def _unary(
  name: str, holds: Callable[[Any], bool], text: str
) -> Callable[..., None]:
  """Returns a check of one value."""

  def check(
    value: Any,
    *,
    value_str: str | None = None,
    msg: str | None = None,
    exception_type: type[Exception] = ValueError,
  ) -> None:
    if AssertsContext.assertions_enabled() and not holds(value):
      shown = value_str or _shown(value, 0)
      raise exception_type(msg or f'`{shown}` {text}')

  check.__doc__ = f'Raises unless the value {text}'
  check.__name__ = check.__qualname__ = name
  return check


def _binary(
  name: str, holds: Callable[[Any, Any], bool], text: str
) -> Callable[..., None]:
  """Returns a check of two values."""

  def check(
    value1: Any,
    value2: Any,
    *,
    value_str1: str | None = None,
    value_str2: str | None = None,
    msg: str | None = None,
    exception_type: type[Exception] = ValueError,
  ) -> None:
    if AssertsContext.assertions_enabled() and not holds(value1, value2):
      shown1 = value_str1 or _shown(value1, 0)
      shown2 = value_str2 or _shown(value2, 1)
      raise exception_type(msg or f'`{shown1}` {text} `{shown2}`.')

  check.__doc__ = f'Raises unless the first value {text} the second.'
  check.__name__ = check.__qualname__ = name
  return check


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
    shown = value_str or _shown(value, 0)
    raise exception_type(msg or f'`{shown}` must be of type `{instances}`.')


def subclass(
  value: type,
  subclasses: type | tuple[type, ...],
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
) -> None:
  """Raises unless the class derives from one of these."""
  if AssertsContext.assertions_enabled() and not issubclass(value, subclasses):
    shown = value_str or _shown(value, 0)
    raise exception_type(
      msg or f'`{shown}` must be a subclass of `{subclasses}`.'
    )


def in_set(
  value: Any,
  elements: Container[Any],
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
) -> None:
  """Raises unless the value is among the elements."""
  if AssertsContext.assertions_enabled() and value not in elements:
    shown = value_str or _shown(value, 0)
    raise exception_type(msg or f'`{shown}` must be within `{elements}`.')


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
  """Raises unless the value lies between two, which may be excluded."""
  above = value > min_value if left_strict else value >= min_value
  below = value < max_value if right_strict else value <= max_value
  if AssertsContext.assertions_enabled() and not (above and below):
    shown = value_str or _shown(value, 0)
    left, right = '(['[not left_strict], ')]'[not right_strict]
    raise exception_type(
      msg or f'`{shown}` must lie in `{left}{min_value}, {max_value}{right}`.'
    )


def assert_same_structure(
  x: Any,
  y: Any,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
) -> None:
  """Raises unless two trees of dicts, lists and tuples have one structure."""
  if not AssertsContext.assertions_enabled():
    return
  is_leaf = lambda value: not isinstance(value, dict | list | tuple)
  first, second = (
    jax.tree.structure(
      tree.ToNestedDict() if isinstance(tree, NestedMap) else tree, is_leaf
    )
    for tree in (x, y)
  )
  if first != second:
    raise exception_type(
      msg or f'Not the same structure: `{first}` and `{second}`'
    )


def _shown(value: Any, index: int) -> str:
  """Returns `text=value`, with the text of an argument of the check."""
  frame = inspect.currentframe().f_back.f_back
  text = _argument(frame, index)
  return str(value) if text in (None, repr(value)) else f'{text}={value}'


def _argument(frame: types.FrameType | None, index: int) -> str | None:
  """Returns the source of an argument of the call that a frame is in."""
  positions = inspect.getframeinfo(frame).positions if frame else None
  if positions is None or positions.lineno is None:
    return None
  first, last = positions.lineno, positions.end_lineno
  lines = [
    linecache.getline(frame.f_code.co_filename, i).encode()
    for i in range(first, last + 1)
  ]
  lines[-1] = lines[-1][: positions.end_col_offset]
  lines[0] = lines[0][positions.col_offset :]
  try:
    call = ast.parse(b''.join(lines).decode().strip(), mode='eval').body
    return ast.unparse(call.args[index])
  except (SyntaxError, AttributeError, IndexError):
    return None  # The source is not at hand, or the value a keyword.
