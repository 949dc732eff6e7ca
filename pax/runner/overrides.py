# SPDX-License-Identifier: Apache-2.0
"""`--set`: constants of the experiment, and fields of the configuration."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any

import fiddle as fdl
from absl import logging

from pax.runner import value_parsing
from pax.tuning import points

_CONSTANT = re.compile(r'_?[A-Z][A-Z0-9_]*')
_STEP = re.compile(r'\.?([A-Za-z_]\w*)|\[(\w+)\]')


@dataclasses.dataclass(frozen=True)
class Override:
  """One `--set name=text`."""

  name: str
  text: str

  @property
  def is_constant(self) -> bool:
    return bool(_CONSTANT.fullmatch(self.name))

  def error(self, reason: object) -> ValueError:
    return ValueError(f'--set {self.name}={self.text}: {reason}')


def parse(settings: Sequence[str]) -> list[Override]:
  """The overrides that the words after --set mean.

  Raises:
    ValueError: a word is not NAME=VALUE.
  """
  overrides = []
  for setting in settings:
    name, equals, text = setting.partition('=')
    if not equals or not name.strip():
      raise ValueError(f'--set wants NAME=VALUE, got {setting!r}')
    overrides.append(Override(name.strip(), text.strip()))
  return overrides


def set_constants(experiment: type, overrides: Sequence[Override]) -> type:
  """A subclass of `experiment` with other constants.

  What the class body computed from a constant keeps its value, as it does in
  a subclass written by hand.

  Raises:
    ValueError: the experiment has no such constant, or of another type.
  """
  overrides = [o for o in overrides if o.is_constant]
  if not overrides:
    return experiment
  changed = {o.name: _constant(experiment, o) for o in overrides}
  for name, value in changed.items():
    logging.info('%s.%s = %r', experiment.__name__, name, value)
  body = {'__module__': experiment.__module__, '__doc__': experiment.__doc__}
  return type(experiment.__name__, (experiment,), body | changed)


def set_fields(tree: fdl.Config, overrides: Sequence[Override]) -> None:
  """Assigns the fields that `overrides` name within `tree`.

  Raises:
    ValueError: a path leads nowhere, or to a value of another type.
  """
  for override in overrides:
    if not override.is_constant:
      _set_field(tree, override)


def constants_of(cls: type) -> dict[str, Any]:
  """The upper-case attributes of a class and its bases."""
  names = [name for name in dir(cls) if _CONSTANT.fullmatch(name)]
  return {name: getattr(cls, name) for name in names}


def _constant(experiment: type, override: Override) -> Any:
  known = constants_of(experiment)
  if override.name not in known:
    raise override.error(
      f'{experiment.__name__} has no constant {override.name}'
      + _near(override.name, known)
    )
  annotations = [
    vars(cls).get('__annotations__', {}).get(override.name)
    for cls in experiment.__mro__
  ]
  declared = next((str(a) for a in annotations if a is not None), '')
  current = known[override.name]
  if isinstance(current, points.OneOf) and override.text in current.by_text:
    return current.by_text[override.text]
  if isinstance(current, points.SearchPoint):
    current = current.example
  return _value(override, current, declared)


def _set_field(tree: fdl.Config, override: Override) -> None:
  *parents, last = _steps(override)
  owner: Any = tree
  for step in parents:
    owner = _get(owner, step, override)
  value = _value(override, _get(owner, last, override), _declared(owner, last))
  if isinstance(last, str) and not isinstance(owner, dict):
    setattr(owner, last, value)
  else:
    owner[last] = value


def _steps(override: Override) -> list[str | int]:
  """The attribute names and the indices of a path such as `a.b[0].c`."""
  steps: list[str | int] = []
  position = 0
  while position < len(override.name):
    match = _STEP.match(override.name, position)
    if not match:
      raise override.error(
        f'cannot read the path from {override.name[position:]!r} on'
      )
    name, key = match.groups()
    steps.append(name or (int(key) if key.isdigit() else key))
    position = match.end()
  return steps


def _get(owner: Any, step: str | int, override: Override) -> Any:
  if isinstance(owner, fdl.Buildable) and isinstance(step, str):
    return _get_field(owner, step, override)
  try:
    if isinstance(step, int) or isinstance(owner, dict):
      return owner[step]
    return getattr(owner, step)
  except (AttributeError, IndexError, KeyError, TypeError):
    names = list(owner) if isinstance(owner, dict) else []
    raise override.error(
      f'{type(owner).__name__} has no {step!r}{_near(str(step), names)}'
    ) from None


def _get_field(owner: fdl.Buildable, step: str, override: Override) -> Any:
  cls = fdl.get_callable(owner)
  fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
  names = [f.name for f in fields if f.init]
  if names and step not in names:
    raise override.error(
      f'{cls.__name__} has no field {step!r}{_near(step, names)}'
    )
  return getattr(owner, step, None)


def _declared(owner: Any, step: str | int) -> str:
  if not isinstance(owner, fdl.Buildable):
    return ''
  cls = fdl.get_callable(owner)
  fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
  return next((str(f.type) for f in fields if f.name == step), '')


def _value(override: Override, current: Any, declared: str) -> Any:
  try:
    return value_parsing.parse_value(override.text, current, declared)
  except ValueError as e:
    raise override.error(f'{override.name} {e}') from e


def _near(name: str, names: Any) -> str:
  near = difflib.get_close_matches(name, list(names), n=3)
  return f'; did you mean {" or ".join(near)}?' if near else ''
