# SPDX-License-Identifier: Apache-2.0
"""The constants of an experiment as text, by the class that sets them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

_DESCRIPTORS = (
  property,
  classmethod,
  staticmethod,
  functools.cached_property,
)


def get_cls_vars_summary(cls: type) -> str:
  """Returns the constants of `cls` under the class each of them comes from.

  The most basic class is first. Values stand as Python writes them:

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


def _is_constant(name: str, value: Any) -> bool:
  if name.isupper():
    return True
  hidden = name.startswith('__') or name.startswith('_abc_')
  return not (
    hidden or callable(value) or isinstance(value, _DESCRIPTORS)
  ) and not inspect.ismemberdescriptor(value)
