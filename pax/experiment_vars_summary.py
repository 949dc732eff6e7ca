# SPDX-License-Identifier: Apache-2.0
"""The constants of an experiment as text, and the parser of that text.

Each run writes the text to `experiment_cls_vars.txt`. This module imports
nothing of Pax, so that readers of those files need only this.
"""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any

from absl import logging

_DESCRIPTORS = (
  property,
  classmethod,
  staticmethod,
  functools.cached_property,
)


def get_cls_vars_summary(cls: type) -> str:
  """Returns the constants of `cls`, grouped by the class that defines them.

  Base classes come first, and values are written by `repr`:

      my_module.MyExperiment:
          NUM_LAYERS: 4
  """
  owners: dict[str, type] = {}
  for owner in cls.__mro__:
    for name, value in vars(owner).items():
      if _is_constant(name, value):
        owners.setdefault(name, owner)
  sections = []
  for owner in reversed(cls.__mro__):
    lines = [
      f'    {name}: {value!r}'
      for name, value in vars(owner).items()
      if owners.get(name) is owner
    ]
    if lines:
      title = f'{owner.__module__}.{owner.__qualname__}:'
      sections.append('\n'.join([title, *lines, '']))
  return '\n'.join(sections)


def parse(cls_vars_summary: str) -> dict[str, Any]:
  """Returns the constants by name from the text of `get_cls_vars_summary`.

  A value that is not a Python literal, such as a class, remains text.
  """
  constants = {}
  for line in cls_vars_summary.splitlines():
    text = line.strip()
    if not text or text.endswith(':'):
      continue  # Between classes, or the name of a class.
    name, colon, value = text.partition(':')
    if not colon:
      logging.warning('No name and value in this line: %s', line)
      continue
    constants[name.strip()] = _literal(value.strip())
  return constants


def _is_constant(name: str, value: Any) -> bool:
  if name.isupper():
    return True
  is_private = name.startswith('__') or name.startswith('_abc_')
  return not (
    is_private or callable(value) or isinstance(value, _DESCRIPTORS)
  ) and not inspect.ismemberdescriptor(value)


def _literal(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
