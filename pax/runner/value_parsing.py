# SPDX-License-Identifier: Apache-2.0
"""Parses the text of `--set NAME=TEXT` as a value of the declared type."""

from __future__ import annotations

import ast
import enum
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from praxis import lazy_loader

# Prefixes that may be left out of the name of a class.
_PREFIXES = ('', 'praxis.', 'praxis.layers.', 'pax.')
_BOOLS = {'true': True, 'false': False, '1': True, '0': False}


def parse_value(text: str, current: Any, annotation: str = '') -> Any:
  """Parses `text` as a replacement of the value `current`.

  Args:
    text: the text after `=`.
    current: the value to replace; its type is that of the result, unless None.
    annotation: the declared type, used if `current` is None, is an integer
      where any number may be, or a text or a container where both may be.

  Raises:
    ValueError: `text` is of another type.
  """
  if text == 'None':
    return None
  return _parser(current, annotation)(text, current)


def _parser(current: Any, annotation: str) -> Callable[[str, Any], Any]:
  if current is None:
    return _PARSERS_BY_NAME.get(_single_type(annotation), _any_literal)
  if _is_dtype(current):
    return _dtype
  if isinstance(current, type):
    return _class
  types = _types(annotation)
  for kind, parser in _PARSERS:
    if isinstance(current, kind):
      if parser is _int and 'float' in types:
        return _number
      if parser in _CONTAINERS_AND_TEXTS and 'str' in types and len(types) > 1:
        return _container_or_str
      return parser
  raise ValueError(
    f'is a {type(current).__name__}, which cannot be set as a whole; set its'
    ' fields'
  )


def _bool(text: str, current: Any) -> bool:
  if text.lower() not in _BOOLS:
    raise ValueError(f'wants True or False, got {text!r}')
  return _BOOLS[text.lower()]


def _int(text: str, current: Any) -> int:
  value = _literal(text)
  if isinstance(value, float) and value.is_integer():
    return int(value)
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f'wants an integer, got {text!r}')
  return value


def _float(text: str, current: Any) -> float:
  try:
    return float(text)
  except ValueError:
    raise ValueError(f'wants a number, got {text!r}') from None


def _number(text: str, current: Any) -> int | float:
  try:
    return _int(text, current)
  except ValueError:
    return _float(text, current)


def _str(text: str, current: Any) -> str:
  quoted = len(text) > 1 and text[0] == text[-1] and text[0] in '\'"'
  return text[1:-1] if quoted else text


def _container_or_str(text: str, current: Any) -> Any:
  value = _literal(text)
  is_container = isinstance(value, list | tuple | dict)
  return value if is_container else _str(text, current)


def _sequence(text: str, current: list[Any] | tuple[Any, ...]) -> Any:
  value = _literal(text)
  if not isinstance(value, list | tuple):
    value = _literal(f'[{text}]')
  if not isinstance(value, list | tuple):
    is_text = any(isinstance(item, str) for item in current)
    example = "['a','b']" if is_text else '[1,2,1]'
    raise ValueError(f'wants a list such as {example}, got {text!r}')
  return type(current)(value)


def _dict(text: str, current: Any) -> dict[Any, Any]:
  value = _literal(text)
  if not isinstance(value, dict):
    raise ValueError(f"wants a dict such as {{'a': 1}}, got {text!r}")
  return value


def _enum(text: str, current: enum.Enum) -> enum.Enum:
  members = type(current).__members__
  by_value = {str(member.value): member for member in type(current)}
  name = _str(text, current).rpartition('.')[2]
  member = members.get(name, by_value.get(name))
  if member is None:
    raise ValueError(f'wants one of {", ".join(members)}, got {text!r}')
  return member


def _dtype(text: str, current: Any) -> Any:
  name = _str(text, current).rpartition('.')[2]
  try:
    dtype = jnp.dtype(name)
    return dtype if isinstance(current, np.dtype) else getattr(jnp, name)
  except (AttributeError, TypeError):
    raise ValueError(f'wants a dtype such as bfloat16, got {text!r}') from None


def _class(text: str, current: type) -> type:
  """The class called `text`, first in the module of the class it replaces."""
  cls = getattr(sys.modules.get(current.__module__), text, None)
  if isinstance(cls, type):
    return cls
  for prefix in _PREFIXES:
    module, _, name = f'{prefix}{text}'.rpartition('.')
    owner = lazy_loader.import_if_exists(module) if module else None
    cls = getattr(owner, name, None)
    if isinstance(cls, type):
      return cls
  raise ValueError(
    f'wants a class such as {current.__module__}.{current.__name__}; there is'
    f' none called {text!r}'
  )


def _any_literal(text: str, current: Any) -> Any:
  value = _literal(text)
  if value is not None:
    return value
  name = text.rpartition('.')[2]
  if text.startswith('jnp.') and hasattr(jnp, name):
    return getattr(jnp, name)
  return _BOOLS.get(text.lower(), text)


def _literal(text: str) -> Any:
  """`text` evaluated as a Python literal, or None if it is none."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return None


def _is_dtype(value: Any) -> bool:
  return isinstance(value, np.dtype) or (
    isinstance(value, type) and isinstance(getattr(value, 'dtype', 0), np.dtype)
  )


def _single_type(annotation: str) -> str:
  """The type of an annotation such as `int | None`, or '' for a union."""
  names = _types(annotation)
  return names.pop() if len(names) == 1 else ''


def _types(annotation: str) -> set[str]:
  return {part.strip() for part in annotation.split('|')} - {'None', ''}


# The first match counts: an enum may be a str, a bool is an int.
_PARSERS = (
  (enum.Enum, _enum),
  (bool, _bool),
  (int, _int),
  (float, _float),
  (str, _str),
  (list | tuple, _sequence),
  (dict, _dict),
)
# Declared together, the text decides.
_CONTAINERS_AND_TEXTS = (_str, _sequence, _dict)
_PARSERS_BY_NAME = {
  'bool': _bool,
  'int': _int,
  'float': _float,
  'str': _str,
}
