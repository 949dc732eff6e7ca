# SPDX-License-Identifier: Apache-2.0
"""Config, Partial and ArgFactory: Fiddle's buildables, extended by Pax."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Callable, Container, Sequence
from typing import Any, Generic, Self, TypeVar, cast

import fiddle as fdl
from fiddle import daglish, history
from fiddle._src import signatures

from praxis import struct_text
from praxis.pax_fiddle import equality, instantiation, metadata, traversers

T = TypeVar('T', covariant=True)
TypeOrCallableProducingT = Callable[..., T] | type[T]

# The history of a field names the caller of these modules.
for _module in ('autoconfig', 'buildables', 'instantiation'):
  history.add_exclude_location(f'praxis/pax_fiddle/{_module}.py')
# Fiddle 0.3.1 caches type hints in a WeakKeyDictionary, which cannot hold its
# keys, tuples: annotations were resolved again for every Config. This halves
# the time to make one.
signatures._type_hints_cache = cast(Any, {})


class CloneAndSetMixin:
  """Adds `clone` and `set`."""

  def clone(self) -> Self:
    """Returns a deep copy."""
    return copy.deepcopy(self)

  def set(self, **kwargs: Any) -> Self:
    """Assigns fields by keyword; returns self."""
    for name, value in kwargs.items():
      setattr(self, name, value)
    return self

  Set = set


# Copies share the lists and sets of these mappings, which do not change: Fiddle
# looks up by `[]` what it changes, and gets a new one.


class _SharedHistory(history.History):
  """The entries of each argument."""

  def __getitem__(self, name: str) -> list[history.HistoryEntry]:
    entries = self[name] = list(self.get(name, ()))
    return entries


class _SharedTags(dict[str | int, set[Any]]):
  """The tags of each argument."""

  def __getitem__(self, name: str | int) -> set[Any]:
    tags = self[name] = set(self.get(name, ()))
    return tags


class _PaxBuildable(CloneAndSetMixin, fdl.Buildable, Generic[T]):
  """The extensions of all buildables: checked fields, `cls`, fast copies."""

  def __init__(self, cls: Callable[..., T], /, *args: Any, **kwargs: Any):
    _check_names(owner_of(cls), kwargs)
    super().__init__(owner_of(cls), *args, **kwargs)
    _add_tags_and_defaults(self)

  # Fiddle's copies look at each parameter and copy signatures and the history.
  # That dominates the time to build a layer.

  def __copy__(self) -> Self:
    copied = object.__new__(type(self))
    own = vars(self)
    if not isinstance(self.__argument_history__, _SharedHistory):
      own['__argument_history__'] = _SharedHistory(self.__argument_history__)
      own['__argument_tags__'] = _SharedTags(self.__argument_tags__)
    vars(copied).update(
      own,
      __argument_history__=_SharedHistory(own['__argument_history__']),
      __argument_tags__=_SharedTags(own['__argument_tags__']),
      __arguments__=dict(self.__arguments__),
    )
    return copied

  def __deepcopy__(self, memo: dict[int, Any]) -> Self:
    copied = memo[id(self)] = self.__copy__()
    arguments = copied.__arguments__
    for name, value in arguments.items():
      if isinstance(value, _PaxBuildable):
        copied_value = memo.get(id(value))
        arguments[name] = copied_value or value.__deepcopy__(memo)
      elif not traversers.is_immutable(value):
        arguments[name] = copy.deepcopy(value, memo)
    return copied

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _PaxBuildable) and equality.are_equal(self, other)

  @property
  def cls(self) -> Any:
    """The configured class or function; assign to replace it."""
    return fdl.get_callable(self)

  @cls.setter
  def cls(self, new: Callable[..., Any]) -> None:
    update_callable(self, new, drop_invalid_args=True)

  def has(self, name: str) -> bool:
    """Whether `name` is set, not left at its default."""
    return name in self.__arguments__

  def __getattr__(self, name: str) -> Any:
    if name not in self.__signature_info__.parameters:
      # Fiddle's error has the text of the whole Config, which takes long.
      _check_names(self.cls, (name,))
    return super().__getattr__(name)

  def __setattr__(self, name: str, value: Any) -> None:
    if name == 'cls':
      object.__setattr__(self, name, value)
      return
    if name not in self.__signature_info__.parameters:
      _check_names(self.cls, (name,))
    super().__setattr__(name, value)


class Config(_PaxBuildable[T], fdl.Config, Generic[T]):
  """Values for the fields of a class; builds an object of it."""

  def Instantiate(self, **kwargs: Any) -> T:
    """Builds a copy of this config with `kwargs` assigned."""
    return instantiation.instantiate(self, **kwargs)

  @property
  def mesh_shape(self) -> list[int] | None:
    """The mesh over all slices, ICI times DCN; None without a mesh.

    Raises:
      ValueError: mesh_axis_names has another length.
    """
    shape = mesh_shape(self.ici_mesh_shape, self.dcn_mesh_shape)
    names = getattr(self, 'mesh_axis_names', None)
    if shape and names is not None and len(shape) != len(names):
      raise ValueError(
        f'mesh_axis_names must have {len(shape)} entries like ici_mesh_shape '
        f'{shape}, got {list(names)}'
      )
    return shape

  def to_text(self, include_types: bool = False, separator: str = ':') -> Any:
    """Returns one sorted line `path : value` per leaf of the tree.

    Args:
      include_types: whether to return (text, {path: name of the type}).
      separator: between path and value.
    """
    return struct_text.nested_struct_to_text(self, include_types, separator)

  def copy_fields_from(
    self, source: Config, missing_fields_in_self: Container[str] = ()
  ) -> Self:
    """Copies every field of `source` except `parent`; returns self.

    Args:
      source: the Config to copy from.
      missing_fields_in_self: fields of `source` to drop.

    Raises:
      TypeError: `source` is not a Config.
      ValueError: a field of `source` is neither in self nor in
        `missing_fields_in_self`, or is required and has no value.
    """
    if not isinstance(source, fdl.Config):
      raise TypeError(f'copy_fields_from expects a Config, got {type(source)}')
    own_fields = {field.name: field for field in metadata.fields_of(self.cls)}
    for field in metadata.fields_of(source.cls):
      if field.name == 'parent' or not field.init:
        continue
      if field.name in own_fields:
        _copy_field(source, field, self, own_fields[field.name])
      elif field.name not in missing_fields_in_self:
        raise ValueError(
          f'Copying incompatible HParams: {field.name!r} not in self '
          f'({_name(self.cls)}), which cannot take it from '
          f'{_name(source.cls)}; list it in missing_fields_in_self to drop it'
        )
    return self


class Partial(_PaxBuildable[T], fdl.Partial, Generic[T]):
  """A Config that builds a callable of the arguments that are not set."""


class ArgFactory(_PaxBuildable[T], fdl.ArgFactory, Generic[T]):
  """An argument of a Partial that is built at each call."""


PaxConfig = Config
PaxPartial = Partial
PaxArgFactory = ArgFactory


def update_callable(
  buildable: fdl.Buildable,
  new_callable: Callable[..., Any],
  drop_invalid_args: bool = False,
) -> None:
  """Replaces the callable of a Config; adds its fields' tags and defaults.

  Args:
    buildable: the Config.
    new_callable: the class or function to configure.
    drop_invalid_args: whether to drop set values that it does not take.

  Raises:
    TypeError: `new_callable` does not take a set value.
  """
  fdl.update_callable(buildable, owner_of(new_callable), drop_invalid_args)
  _add_tags_and_defaults(buildable)


def mesh_shape(
  ici: Sequence[int] | None, dcn: Sequence[int] | None
) -> list[int] | None:
  """Returns the element-wise product of two mesh shapes; None without ICI.

  Raises:
    ValueError: the shapes differ in length.
  """
  if ici is None:
    return None
  if dcn is None:
    return list(ici)
  if len(ici) != len(dcn):
    raise ValueError(
      f'dcn_mesh_shape must have {len(ici)} entries like ici_mesh_shape '
      f'{list(ici)}, got {list(dcn)}'
    )
  return [i * d for i, d in zip(ici, dcn, strict=True)]


def owner_of(cls: Any) -> Any:
  """Returns `Linear` for `Linear.HParams`; other callables unchanged."""
  return getattr(cls, 'owner', None) or cls


def _add_tags_and_defaults(buildable: fdl.Buildable) -> None:
  for field in metadata.fields_of(fdl.get_callable(buildable)):
    field_metadata = metadata.field_metadata(field)
    if field_metadata is None:
      continue
    initializer = field_metadata.buildable_initializer
    if initializer and field.name not in buildable.__arguments__:
      value = initializer()
      if not field_metadata.is_template and not isinstance(
        buildable, fdl.Config
      ):
        value = _per_call(value, f'{_name(buildable.cls)}.{field.name}')
      setattr(buildable, field.name, value)
    for tag in field_metadata.tags:
      fdl.add_tag(buildable, field.name, tag)


def _per_call(value: Any, where: str) -> Any:
  """Replaces the Configs in a Partial's default by factories for each call."""

  def visit(value: Any, state: daglish.State) -> Any:
    if isinstance(value, fdl.Partial):
      if any(isinstance(v, fdl.Config) for v, _ in daglish.iterate(value)):
        raise ValueError(
          f'Unable to safely replace {where} in a Partial: its default is a '
          'Partial that contains a Config; calls of the inner Partial share '
          'its object, calls of the outer one must not; set a value for it'
        )
      return value
    value = state.map_children(value)
    is_config = isinstance(value, fdl.Config)
    return fdl.cast(ArgFactory, value) if is_config else value

  return daglish.MemoizedTraversal.run(visit, value)


class UnknownFieldError(AttributeError, TypeError):
  """A class lacks a field.

  An attribute error as of an assignment, and a type error as of a call: a
  Config is made like a call.
  """

  def __init__(self, cls: Any, name: str) -> None:
    super().__init__(cls, name)

  # Made when it is shown: `hasattr` makes errors that nobody reads.
  def __str__(self) -> str:
    cls, name = self.args
    fields = _field_names(cls)
    similar = difflib.get_close_matches(name, fields, n=1)
    hint = f' Did you mean {similar[0]!r}?' if similar else ''
    if hasattr(cls, name):
      hint = ' It is an attribute of the object that Instantiate() returns.'
    return (
      f'{_name(cls)} has no field {name!r}.{hint} Its fields: '
      f'{", ".join(sorted(fields))}.'
    )


def _check_names(cls: Any, names: Any) -> None:
  """Raises UnknownFieldError, with a similar name, for a field `cls` lacks."""
  fields = _field_names(cls)
  for name in names:
    if fields and not name.startswith('__') and name not in fields:
      raise UnknownFieldError(cls, name)


def _field_names(cls: Any) -> list[str]:
  return [f.name for f in metadata.fields_of(cls) if f.init]


def _copy_field(
  source: fdl.Config,
  source_field: dataclasses.Field,
  target: fdl.Config,
  target_field: dataclasses.Field,
) -> None:
  name = source_field.name
  where = f'{_name(source.cls)}.{name}'
  if name in source.__arguments__:
    setattr(target, name, copy.deepcopy(source.__arguments__[name]))
  elif source_field.default is not dataclasses.MISSING:
    setattr(target, name, source_field.default)
  elif source_field.default_factory is dataclasses.MISSING:
    raise ValueError(f"Can't copy from missing required value {where}")
  elif source_field.default_factory != target_field.default_factory:
    raise ValueError(f"Can't copy from default_factory {where}")
  else:
    target.__arguments__.pop(name, None)


def _name(cls: Any) -> str:
  return getattr(cls, '__name__', str(cls))
