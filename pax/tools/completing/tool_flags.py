# SPDX-License-Identifier: Apache-2.0
"""The flags of the tools, read from their sources.

To import a tool may take seconds, because most import JAX.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Any

from pax.runner import command_line
from praxis import value_domains

# Where the flags of a tool are, if not in its own module.
_MODULES = {'launch': 'pax.tools.launching.job'}
# Bases with flags of their own, as the tools name them.
_BASES = {
  'abstract_experiment.ExperimentOptions': 'pax.tools.abstract_experiment'
}


@dataclasses.dataclass(frozen=True)
class Flag:
  """What completion offers for a flag."""

  name: str
  text: str
  is_boolean: bool
  # All valid values, if there are few.
  values: tuple[str, ...] = ()


def of_options(options: type) -> list[Flag]:
  """Returns the flags of a dataclass of flags."""
  return [
    Flag(
      field.name,
      field.metadata['help'],
      str(field.type).startswith('bool'),
      _values(field.metadata.get(value_domains.KEY)),
    )
    for field in command_line.flag_fields(options)
  ]


def of_tool(tool: str) -> list[Flag]:
  """Returns the flags of a tool; does not import it."""
  return list(_flags(_MODULES.get(tool, f'pax.tools.{tool}')))


def _values(domain: Any) -> tuple[str, ...]:
  if not isinstance(domain, value_domains.OneOf):
    return ()
  return tuple(map(str, domain.values))


def _flags(module: str) -> Iterator[Flag]:
  spec = importlib.util.find_spec(module)
  if spec is None or spec.origin is None:
    raise ModuleNotFoundError(f'no source of {module}', name=module)
  for cls in ast.parse(pathlib.Path(spec.origin).read_text('utf-8')).body:
    if isinstance(cls, ast.ClassDef):
      for base in cls.bases:
        if name := _BASES.get(ast.unparse(base)):
          yield from _flags(name)
      yield from filter(None, map(_flag, cls.body))


def _flag(field: ast.stmt) -> Flag | None:
  """The flag that a line of a class body declares, None if it does not."""
  if not isinstance(field, ast.AnnAssign):
    return None
  target, call = field.target, _call_of(field.value, 'flag')
  if call is None or not isinstance(target, ast.Name):
    return None
  options = {word.arg: word.value for word in call.keywords}
  domain = _call_of(options.get('domain'), 'OneOf')
  values = ast.literal_eval(domain.args[0]) if domain else ()
  return Flag(
    target.id,
    ast.literal_eval(call.args[2]),
    ast.unparse(field.annotation).startswith('bool'),
    tuple(map(str, values)),
  )


def _call_of(node: ast.expr | None, function: str) -> ast.Call | None:
  """The expression if it calls a function, maybe one of a module."""
  if not isinstance(node, ast.Call):
    return None
  name = ast.unparse(node.func).rpartition('.')[2]
  return node if name == function else None
