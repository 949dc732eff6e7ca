# SPDX-License-Identifier: Apache-2.0
"""`--set`: constants of the experiment, and fields of the configuration."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import fiddle as fdl
from absl import logging

from pax.runner import value_parsing
from pax.tuning import points

_CONSTANT = re.compile(r'_?[A-Z][A-Z0-9_]*')
_PATH_STEP = re.compile(r'\.?([A-Za-z_]\w*)|\[(\w+)\]')
# More names are no help in a message.
_MAX_LISTED_NAMES = 6


@dataclasses.dataclass(frozen=True)
class Override:
  """One `--set name=text`."""

  # A constant, or a path such as `a.b[0].c`.
  name: str
  text: str

  @property
  def is_constant(self) -> bool:
    return bool(_CONSTANT.fullmatch(self.name))

  def is_in(self, root: str) -> bool:
    """Whether it sets a field of the part of the configuration `root`."""
    return self.name.startswith(f'{root}.')

  def error(self, reason: object) -> ValueError:
    """Returns an error that begins with the flag."""
    return ValueError(f'--set {self.name}={self.text}: {reason}')


def parse(settings: Sequence[str]) -> list[Override]:
  """Parses the values of --set.

  Raises:
    ValueError: a value is not NAME=VALUE.
  """
  overrides = []
  for setting in settings:
    name, equals, text = setting.partition('=')
    if not equals or not name.strip():
      raise ValueError(f'--set wants NAME=VALUE, got {setting!r}')
    overrides.append(Override(name.strip(), text.strip()))
  return overrides


def set_constants(experiment: type, overrides: Sequence[Override]) -> type:
  """Returns a subclass of `experiment` with other constants.

  Values that the class body computed from a constant do not change, as in a
  subclass written by hand. Overrides of fields are ignored.

  Raises:
    ValueError: the experiment has no such constant, or one of another type.
  """
  constants = {
    override.name: _constant_value(experiment, override)
    for override in overrides
    if override.is_constant
  }
  if not constants:
    return experiment
  for name, value in constants.items():
    logging.info('%s.%s = %r', experiment.__name__, name, value)
  body = {'__module__': experiment.__module__, '__doc__': experiment.__doc__}
  return type(experiment.__name__, (experiment,), body | constants)


def set_fields(tree: fdl.Config, overrides: Sequence[Override]) -> None:
  """Assigns the fields that `overrides` name in `tree`; ignores constants.

  Raises:
    ValueError: a path does not exist, or the value is of another type.
  """
  for override in overrides:
    if not override.is_constant:
      _assigned(tree, _path_steps(override), override)


def constants_of(cls: type) -> dict[str, Any]:
  """Returns the upper-case attributes of a class and its bases."""
  names = [name for name in dir(cls) if _CONSTANT.fullmatch(name)]
  return {name: getattr(cls, name) for name in names}


def _constant_value(experiment: type, override: Override) -> Any:
  constants = constants_of(experiment)
  if override.name not in constants:
    raise override.error(
      f'{experiment.__name__} has no constant {override.name}'
      + _suggestion(override.name, constants)
    )
  annotations = [
    inspect.get_annotations(cls).get(override.name)
    for cls in experiment.__mro__
  ]
  annotation = next((a for a in annotations if a is not None), '')
  current = constants[override.name]
  if isinstance(current, points.OneOf) and override.text in current.by_text:
    return current.by_text[override.text]
  if isinstance(current, points.SearchPoint):
    current = current.example
  return _parse_value(override, current, _annotation_text(annotation))


def _assigned(owner: Any, steps: list[str | int], override: Override) -> Any:
  """Returns `owner` with the value of `override` at the path `steps`.

  A Config is changed itself. Other containers are copied: a list may be a
  constant of the experiment or the field of several Configs, and tuples and
  values such as WeightInit cannot change.
  """
  step, *rest = steps
  current = _child(owner, step, override)
  if rest:
    value = _assigned(current, rest, override)
  else:
    value = _parse_value(override, current, _annotation(owner, step))
  if isinstance(owner, fdl.Buildable):
    if value is not current and isinstance(step, str):
      setattr(owner, step, value)
    elif value is not current:
      owner[step] = value
    return owner
  if hasattr(owner, '_replace'):  # A named tuple.
    name = owner._fields[step] if isinstance(step, int) else step
    return owner._replace(**{name: value})
  if isinstance(owner, list | tuple) and isinstance(step, int):
    items = list(owner)
    items[step] = value
    return type(owner)(items)
  if dataclasses.is_dataclass(owner) and not isinstance(owner, type):
    return dataclasses.replace(owner, **{str(step): value})
  changed = copy.copy(owner)
  if isinstance(owner, dict):
    changed[step] = value
  else:
    setattr(changed, str(step), value)
  return changed


def _path_steps(override: Override) -> list[str | int]:
  """The attribute names and the indices of a path such as `a.b[0].c`."""
  steps: list[str | int] = []
  position = 0
  while position < len(override.name):
    match = _PATH_STEP.match(override.name, position)
    if not match:
      raise override.error(
        f'cannot read the path from {override.name[position:]!r} on'
      )
    name, key = match.groups()
    steps.append(name or (int(key) if key.isdigit() else key))
    position = match.end()
  return steps


def _child(owner: Any, step: str | int, override: Override) -> Any:
  if isinstance(owner, fdl.Buildable) and isinstance(step, str):
    return _field_value(owner, step, override)
  try:
    if isinstance(step, int) or isinstance(owner, dict):
      return owner[step]
    return getattr(owner, step)
  except (AttributeError, IndexError, KeyError, TypeError):
    names = list(owner) if isinstance(owner, dict) else []
    kind: Callable[..., Any] = type(owner)
    if isinstance(owner, fdl.Buildable):
      kind = fdl.get_callable(owner)
    raise override.error(
      f'{kind.__name__} has no {step!r}{_suggestion(str(step), names)}'
    ) from None


def _field_value(owner: fdl.Buildable, name: str, override: Override) -> Any:
  cls = fdl.get_callable(owner)
  fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
  names = [f.name for f in fields if f.init]
  if names and name not in names:
    raise override.error(
      f'{cls.__name__} has no field {name!r}{_suggestion(name, names)}'
    )
  return getattr(owner, name, None)


def _annotation(owner: Any, name: str | int) -> str:
  is_config = isinstance(owner, fdl.Buildable)
  cls = fdl.get_callable(owner) if is_config else type(owner)
  fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
  return next((_annotation_text(f.type) for f in fields if f.name == name), '')


def _annotation_text(annotation: Any) -> str:
  """Returns an annotation as in the source, also where it is evaluated."""
  if isinstance(annotation, str):
    return annotation
  return inspect.formatannotation(annotation)


def _parse_value(override: Override, current: Any, annotation: str) -> Any:
  try:
    return value_parsing.parse_value(override.text, current, annotation)
  except ValueError as e:
    raise override.error(f'{override.name} {e}') from e


def _suggestion(name: str, names: Iterable[str]) -> str:
  names = list(names)
  if matches := difflib.get_close_matches(name, names, n=3):
    return f'; did you mean {" or ".join(matches)}?'
  is_short = 0 < len(names) <= _MAX_LISTED_NAMES
  return f'; it has {", ".join(names)}' if is_short else ''
