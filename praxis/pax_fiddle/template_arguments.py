# SPDX-License-Identifier: Apache-2.0
"""Template arguments: those whose Configs are not built with their owner.

A field is a template if `template_field` created it, or if its annotation
contains a Config: `Config[X]`, `list[Config[X]]`, `dict[str, Config] | None`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import sys
import types
import typing
import weakref
from typing import Any

import fiddle as fdl
from fiddle import daglish

from praxis.pax_fiddle import metadata, traversers

_CONTAINERS = (
  list,
  tuple,
  dict,
  collections.abc.Sequence,
  collections.abc.Mapping,
  types.UnionType,
  typing.Union,
)
# Whether an argument is a template, by class or function and argument name.
_is_template_cache: weakref.WeakKeyDictionary[Any, dict[str, bool]] = (
  weakref.WeakKeyDictionary()
)


@dataclasses.dataclass(frozen=True, eq=False)
class TemplateWrapper:
  """A function without arguments that returns a template, unbuilt."""

  template: fdl.Buildable

  def __call__(self) -> fdl.Buildable:
    return self.template


def wrap_templates(buildable: Any) -> Any:
  """Returns `buildable`, or a copy, with its templates in TemplateWrappers.

  Templates within templates are not changed.

  Raises:
    TypeError: the annotation of an argument with a Config cannot be resolved.
    ValueError: that annotation has a container other than list, tuple, dict,
      Sequence, Mapping and Union.
  """

  def wrap(value: Any, state: daglish.State) -> Any:
    if isinstance(value, fdl.Buildable):
      return TemplateWrapper(value)
    return state.map_children(value)

  def visit(value: Any, state: daglish.State) -> Any:
    if not isinstance(value, fdl.Buildable):
      return state.map_children(value)

    def wrap_argument(name: str, argument: Any) -> Any:
      if _holds_config(argument) and is_template(fdl.get_callable(value), name):
        # A separate traversal: the same Config may be built elsewhere.
        return daglish.MemoizedTraversal.run(wrap, argument)
      return state.call(argument, daglish.Attr(name))

    return traversers.map_arguments(value, wrap_argument)

  return daglish.MemoizedTraversal.run(visit, buildable)


def is_template(fn_or_cls: Any, name: str) -> bool:
  """Whether an argument of a class or function is a template."""
  try:
    cache = _is_template_cache.setdefault(fn_or_cls, {})
  except TypeError:  # Not hashable, or not weakly referenceable.
    cache = {}
  if name not in cache:
    cache[name] = _is_template(fn_or_cls, name)
  return cache[name]


def _is_template(fn_or_cls: Any, name: str) -> bool:
  for field in metadata.fields_of(fn_or_cls):
    if field.name == name:
      field_metadata = metadata.field_metadata(field)
      if field_metadata is not None and field_metadata.is_template:
        return True
  where = f'{getattr(fn_or_cls, "__name__", fn_or_cls)}.{name}'
  annotation = _annotation(fn_or_cls, name, where)
  if not _mentions_buildable(annotation):
    return False
  if not _is_supported(annotation):
    raise ValueError(
      f'Unsupported type {annotation!r} of {where}: a container of Configs '
      'must be a list, tuple, dict, Mapping, Sequence or Union'
    )
  return True


def _holds_config(value: Any) -> bool:
  if isinstance(value, fdl.Buildable):
    return True
  return any(isinstance(v, fdl.Buildable) for v, _ in daglish.iterate(value))


def _annotation(fn_or_cls: Any, name: str, where: str) -> Any:
  """Returns the annotation of an argument, or None."""
  is_class = isinstance(fn_or_cls, type)
  owners = fn_or_cls.__mro__ if is_class else (fn_or_cls,)
  # Fields first, then the parameters of `__init__`: that of a dataclass repeats
  # inherited fields, whose annotations other modules resolve.
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
