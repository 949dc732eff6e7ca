# SPDX-License-Identifier: Apache-2.0
"""Which arguments are templates: those that stay Configs in a built object.

A field is one if `template_field` made it, or if its type says that it holds
Configs: `Config[X]`, `list[Config[X]]`, `dict[str, Config] | None`, and so on.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import sys
import types
import typing
import weakref
from typing import Any

import fiddle as fdl
from fiddle import daglish

from praxis.pax_fiddle import metadata

_CONTAINERS = (
  list,
  tuple,
  dict,
  collections.abc.Sequence,
  collections.abc.Mapping,
  types.UnionType,
  typing.Union,
)
# What most arguments are, and what holds no Config.
_LEAVES = (bool, float, int, str, type)
_known: weakref.WeakKeyDictionary[Any, dict[str, bool]] = (
  weakref.WeakKeyDictionary()
)


@dataclasses.dataclass(frozen=True, eq=False)
class TemplateWrapper:
  """A function without arguments that returns a template, as it is."""

  # Fiddle looks for both, which takes longer than all else it does here.
  __signature__ = inspect.Signature()
  __no_type_check__ = True

  template: fdl.Buildable

  def __call__(self) -> fdl.Buildable:
    return self.template


def wrap_templates(buildable: Any) -> Any:
  """Returns a copy in which a build gives back templates instead of objects.

  Templates within templates are left alone.

  Raises:
    TypeError: the type of an argument that holds a Config is not to be found.
    ValueError: that type is a container other than list, tuple, dict, Sequence,
      Mapping and Union.
  """

  def wrap(value: Any, state: daglish.MemoizedTraversal) -> Any:
    if isinstance(value, fdl.Buildable):
      return fdl.Config(TemplateWrapper(value))
    return state.map_children(value)

  def visit(value: Any, state: daglish.MemoizedTraversal) -> Any:
    if not isinstance(value, fdl.Buildable):
      return state.map_children(value)
    arguments = {}
    for name, argument in value.__arguments__.items():
      if _holds_config(argument) and is_template(fdl.get_callable(value), name):
        # A walk of its own: elsewhere the same Config may be built.
        arguments[name] = daglish.MemoizedTraversal.run(wrap, argument)
      else:
        arguments[name] = state.call(argument, daglish.Attr(name))
    changed = {
      name: new
      for name, new in arguments.items()
      if new is not value.__arguments__[name]
    }
    return fdl.copy_with(value, **changed)

  return daglish.MemoizedTraversal.run(visit, buildable)


def is_template(fn_or_cls: Any, name: str) -> bool:
  """Whether an argument of a class or function stays a Config."""
  try:
    known = _known.setdefault(fn_or_cls, {})
  except TypeError:  # Not hashable, or not to be referenced weakly.
    known = {}
  if name not in known:
    known[name] = _is_template(fn_or_cls, name)
  return known[name]


def _is_template(fn_or_cls: Any, name: str) -> bool:
  for field in metadata.fields_of(fn_or_cls):
    said = metadata.field_metadata(field)
    if field.name == name and said is not None and said.is_template:
      return True
  where = f'{getattr(fn_or_cls, "__name__", fn_or_cls)}.{name}'
  annotation = _annotation(fn_or_cls, name, where)
  if not _mentions_buildable(annotation):
    return False
  if not _is_supported(annotation):
    raise ValueError(
      f'Unsupported type {annotation!r} of {where}: what holds Configs must '
      'be a list, tuple, dict, Mapping, Sequence or Union of them'
    )
  return True


def _holds_config(value: Any) -> bool:
  if value is None or isinstance(value, _LEAVES):
    return False
  return any(isinstance(v, fdl.Buildable) for v, _ in daglish.iterate(value))


def _annotation(fn_or_cls: Any, name: str, where: str) -> Any:
  """Returns the type of an argument, None if it has none."""
  is_class = isinstance(fn_or_cls, type)
  owners = fn_or_cls.__mro__ if is_class else (fn_or_cls,)
  # Of a class the fields, and only then what an `__init__` takes: the one of a
  # dataclass repeats inherited fields, whose types other modules know.
  holders = [(owner, owner) for owner in owners]
  holders += [(vars(owner).get('__init__'), owner) for owner in owners]
  for holder, owner in holders:
    annotation = getattr(holder, '__annotations__', {}).get(name)
    if annotation is not None:
      return _resolved(annotation, owner, where)
  return None


def _resolved(annotation: Any, owner: Any, where: str) -> Any:
  module = sys.modules.get(getattr(owner, '__module__', ''))
  while isinstance(annotation, str):
    try:
      annotation = eval(annotation, vars(module), dict(vars(owner)))
    except (NameError, AttributeError) as error:
      raise TypeError(
        f'Unable to resolve type annotation {annotation!r} of {where} '
        f'({error}); a Config there is either a template or not'
      ) from error
  return annotation


def _is_buildable(annotation: Any) -> bool:
  kind = typing.get_origin(annotation) or annotation
  return isinstance(kind, type) and issubclass(kind, fdl.Buildable)


def _mentions_buildable(annotation: Any) -> bool:
  if _is_buildable(annotation):
    return True
  is_literal = typing.get_origin(annotation) is typing.Literal
  parts = () if is_literal else typing.get_args(annotation)
  return any(map(_mentions_buildable, parts))


def _is_supported(annotation: Any) -> bool:
  if _is_buildable(annotation) or not _mentions_buildable(annotation):
    return True
  parts = typing.get_args(annotation)
  is_container = typing.get_origin(annotation) in _CONTAINERS
  return is_container and all(map(_is_supported, parts))
