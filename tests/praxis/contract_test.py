# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: data=//tests/golden:all_files
# bazel: deps=//tools/wheel:praxis_modules
"""Our public names, fields, defaults and arguments are upstream's.

`tests/golden/contract/praxis.txt` says what upstream has. Where we differ on
purpose, `exceptions.txt` beside it says what and why.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import pytest

FOLDER = pathlib.Path(__file__).parents[1] / 'golden' / 'contract'
FACT = re.compile(r'(class|field|def|value) ([\w.]+)(?:\((.*)\))?(?: = (.*))?')
UNSAID = object()


def lines(name: str) -> list[str]:
  text = (FOLDER / name).read_text()
  return [x for x in text.splitlines() if x and not x.startswith('#')]


@functools.cache
def facts() -> dict[str, list[str]]:
  """Returns what upstream has, by module."""
  found: dict[str, list[str]] = {}
  for line in lines('praxis.txt'):
    kind, _, rest = line.partition(' ')
    if kind == 'module':
      own = found.setdefault(rest, [])
    else:
      own.append(line)
  return found


@functools.cache
def exceptions() -> dict[str, str]:
  """Returns the reason of each difference."""
  pairs = (line.split(': ', 1) for line in lines('exceptions.txt'))
  return {name: reason for name, reason in pairs}


def differences(module: str) -> Iterator[tuple[str, str]]:
  """Yields what is not as upstream has it, and how."""
  try:
    ours = importlib.import_module(module)
  except ModuleNotFoundError:
    yield module, 'no such module'
    return
  for fact in facts()[module]:
    kind, name, arguments, default = FACT.fullmatch(fact).groups()
    fault = CHECKS[kind](ours, name, arguments, default)
    if fault:
      yield f'{module}.{name}', fault


def check_class(ours: Any, name: str, *_: Any) -> str | None:
  return None if isinstance(find(ours, name), type) else 'no such class'


def check_field(
  ours: Any, name: str, _: Any, default: str | None
) -> str | None:
  owner, _, field = name.rpartition('.')
  cls = find(ours, owner)
  if cls is None:
    return None  # Said of the class.
  got = default_of(cls, field)
  if got is UNSAID:
    return 'no such field'
  if default is None or is_default(default, got):
    return None
  return f'the default is {got!r}, upstream {default}'


def check_def(ours: Any, name: str, arguments: str, _: Any) -> str | None:
  owner = name.rpartition('.')[0]
  if owner and find(ours, owner) is None:
    return None
  function = find(ours, name)
  if function is None:
    return 'no such function'
  try:
    parameters = inspect.signature(function).parameters
  except (TypeError, ValueError):
    return None
  if any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
    return None
  missing = [a for a in arguments.split(', ') if a and a not in parameters]
  return f'no argument {", ".join(missing)}' if missing else None


def check_value(ours: Any, name: str, *_: Any) -> str | None:
  return None if hasattr(ours, name) else 'no such name'


CHECKS = {
  'class': check_class,
  'field': check_field,
  'def': check_def,
  'value': check_value,
}


def find(ours: Any, name: str) -> Any:
  """Returns what is called so in a module, or None."""
  for part in name.split('.'):
    ours = getattr(ours, part, None)
  return ours


def default_of(cls: type, name: str) -> Any:
  """Returns a field's default, or UNSAID if there is no such field."""
  own = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
  for field in own:
    if field.name == name:
      if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
      return field.default
  return getattr(cls, name, UNSAID)


def is_default(wanted: str, got: Any) -> bool:
  """Whether a default is the one that the facts say."""
  kind, _, name = wanted.partition(' ')
  if kind == 'template':
    return isinstance(got, fdl.Buildable) and got.__fn_or_cls__.__name__ == name
  if kind == 'instance':
    return got is not None
  value = ast.literal_eval(wanted)
  if isinstance(got, enum.Enum):
    got = got.value
  if isinstance(value, (list, tuple)) and isinstance(got, (list, tuple)):
    return list(value) == list(got)
  return value == got


@pytest.mark.parametrize('module', facts())
def test_a_module_is_as_upstream_has_it(module):
  known = exceptions()
  unknown = [
    f'{name}: {fault}'
    for name, fault in differences(module)
    if name not in known
  ]
  assert not unknown, '\n'.join(unknown)


def test_exceptions_are_still_needed():
  different = {name for module in facts() for name, _ in differences(module)}
  assert not set(exceptions()) - different


def test_a_difference_is_seen():
  ours = importlib.import_module('praxis.layers.linears')
  assert check_class(ours, 'Linea')
  assert check_field(ours, 'Linear.dims', None, None)
  assert check_field(ours, 'Linear.input_dims', None, '1')
  assert not check_field(ours, 'Linear.input_dims', None, '0')
  assert check_def(ours, 'Linear.__call__', 'x', None)
  assert not check_def(ours, 'Linear.__call__', 'inputs', None)
