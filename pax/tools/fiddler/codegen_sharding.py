# SPDX-License-Identifier: Apache-2.0
"""Code that says how arrays are split in a function of its own."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
from fiddle import daglish

from pax.tools.fiddler import codegen, remove_sharding
from praxis import pax_fiddle

Config = pax_fiddle.Config

_LITERALS = (int, str, type(None))
_CODE = """

def add_sharding(config):
{lines}


def {name}():
  config = {name}_without_sharding()
  add_sharding(config)
  return config
"""


def sharding_diff(config: Config[Any]) -> list[tuple[str, Any]]:
  """Returns (path, value) of all that says how arrays are split.

  Raises:
    ValueError: it is no list of mesh axes, or of another class than usual.
  """
  found: list[tuple[str, Any]] = []
  for value, path in daglish.iterate(config):
    if isinstance(value, fdl.Buildable):
      for name, child in fdl.ordered_arguments(value).items():
        if remove_sharding.is_sharding(child, name):
          where = f'{daglish.path_str(path)}.{name}'
          found += _entries(where, fdl.get_callable(value), name, child)
  return found


def codegen_with_sharding_apart(
  config: Config[Any], max_expression_complexity: int | None = None
) -> str:
  """Returns code with `add_sharding(config)`, which `experiment()` calls."""
  bare = f'{codegen.FIXTURE}_without_sharding'
  code = codegen.codegen_experiment(
    remove_sharding.remove_sharding(config),
    max_expression_complexity,
    name=bare,
  )
  entries = sharding_diff(config)
  lines = [f'  config{path} = {value!r}' for path, value in entries]
  body = '\n'.join(lines or ['  del config'])
  return code.rstrip() + '\n' + _CODE.format(lines=body, name=codegen.FIXTURE)


def _entries(
  where: str, owner: Any, name: str, child: Any
) -> list[tuple[str, Any]]:
  if not isinstance(child, fdl.Buildable):
    return [(where, _checked(where, child))]
  usual = getattr(Config(owner), name, None)
  is_usual = isinstance(usual, fdl.Buildable) and (
    fdl.get_callable(usual) is fdl.get_callable(child)
  )
  if not is_usual:
    raise ValueError(
      f'{where} must be a Config of what its class declares, got {child!r};'
      ' write it as code together with the rest'
    )
  return [
    (f'{where}.{axis}', _checked(f'{where}.{axis}', value))
    for axis, value in fdl.ordered_arguments(child).items()
  ]


def _checked(where: str, value: Any) -> Any:
  parts = value if isinstance(value, list | tuple) else [value]
  if isinstance(value, list | tuple):
    for part in parts:
      _checked(where, part)
  elif not isinstance(value, _LITERALS):
    raise ValueError(
      f'{where} must be mesh axes, or lists of them, got {value!r}'
    )
  return value
