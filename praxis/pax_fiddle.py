# SPDX-License-Identifier: Apache-2.0
"""How everything in Pax is configured: dataclass fields, held in a `Config`.

A configurable class declares its parameters as fields; `Config(Linear)` holds
values for them until `build` makes the object. A template field keeps its
Config for the owner to build, an instance field is built with its owner.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import fiddle as fdl

# The Fiddle vocabulary, so that user code needs this module alone.
from fiddle import NO_VALUE as NO_VALUE
from fiddle import Buildable as Buildable
from fiddle import Tag as Tag
from fiddle import TaggedValue as TaggedValue
from fiddle import add_tag as add_tag
from fiddle import assign as assign
from fiddle import building as _building
from fiddle import cast as cast
from fiddle import copy_with as copy_with
from fiddle import daglish as _daglish
from fiddle import deepcopy_with as deepcopy_with
from fiddle import get_callable as get_callable
from fiddle import get_tags as get_tags
from fiddle import history as _history
from fiddle import materialize_defaults as materialize_defaults
from fiddle import ordered_arguments as ordered_arguments
from fiddle import set_tagged as set_tagged
from fiddle import set_tags as set_tags

from praxis import nested_map, struct_text

T = TypeVar('T')
_DEFAULT_CONFIG = 'pax.default_config'
_IS_TEMPLATE = 'pax.is_template'
_TAGS = 'pax.tags'

_history.add_exclude_location('pax_fiddle.py')

# Configs within a NestedMap are found, built and serialised like any other.
_daglish.register_node_traverser(
  nested_map.NestedMap,
  flatten_fn=lambda m: (tuple(m.values()), tuple(m)),
  unflatten_fn=lambda values, keys: nested_map.NestedMap(
    zip(keys, values, strict=True)
  ),
  path_elements_fn=lambda m: tuple(_daglish.Key(key) for key in m),
)


class _Settable:
  """What Config and Partial add to Fiddle's buildables."""

  def __init__(self, cls: Callable[..., Any], /, *args: Any, **kwargs: Any):
    _check_names(owner_of(cls), kwargs)
    super().__init__(owner_of(cls), *args, **kwargs)
    for field in fields_of(self.cls):
      make = field.metadata.get(_DEFAULT_CONFIG)
      if make and not self.has(field.name):
        setattr(self, field.name, make())
      for tag in field.metadata.get(_TAGS, ()):
        add_tag(self, field.name, tag)

  @property
  def cls(self) -> Callable[..., Any]:
    """The class or function that is configured; assign to replace it."""
    return fdl.get_callable(self)

  @cls.setter
  def cls(self, new: Callable[..., Any]) -> None:
    fdl.update_callable(self, owner_of(new), drop_invalid_args=True)

  def has(self, name: str) -> bool:
    """Whether `name` was set here, rather than left at its default."""
    return name in self.__arguments__

  def set(self, **kwargs: Any) -> Any:
    """Assigns fields by keyword; returns self."""
    for name, value in kwargs.items():
      setattr(self, name, value)
    return self

  Set = set

  def clone(self) -> Any:
    """Returns a deep copy."""
    return copy.deepcopy(self)

  def __setattr__(self, name: str, value: Any) -> None:
    if name == 'cls':
      type(self).cls.fset(self, value)
      return
    _check_names(self.cls, (name,))
    super().__setattr__(name, value)


class Config(_Settable, fdl.Config[T], Generic[T]):
  """Values for the fields of a class, and for those of its sub-configs."""

  def Instantiate(self, **kwargs: Any) -> T:
    """Builds a copy of this config with `kwargs` assigned."""
    return instantiate(self, **kwargs)

  @property
  def mesh_shape(self) -> list[int] | None:
    """The mesh over all slices: ICI times DCN, or None without a mesh."""
    return mesh_shape(self.ici_mesh_shape, self.dcn_mesh_shape)

  def to_text(self, include_types: bool = False, separator: str = ':') -> str:
    """Returns one sorted line `path : value` per leaf of the tree."""
    return struct_text.nested_struct_to_text(self, include_types, separator)

  def copy_fields_from(
    self, source: Config, missing_fields_in_self: Sequence[str] = ()
  ) -> Config:
    """Copies every field of `source` but `parent`; returns self.

    Raises:
      TypeError: `source` is no Config.
      ValueError: a field of `source` is not in self, and not in
        `missing_fields_in_self`, or is required and has no value.
    """
    if not isinstance(source, fdl.Config):
      raise TypeError(f'copy_fields_from wants a Config, got {type(source)}')
    mine = {field.name for field in fields_of(self.cls)}
    for field in fields_of(source.cls):
      if field.name in ('parent', *missing_fields_in_self):
        continue
      if field.name not in mine:
        raise ValueError(
          f'{field.name!r} not in self: {_name(self.cls)} cannot take it from '
          f'{_name(source.cls)}; list it in missing_fields_in_self to drop it'
        )
      setattr(self, field.name, copy.deepcopy(_value(source, field)))
    return self


class Partial(_Settable, fdl.Partial[T], Generic[T]):
  """A `Config` that builds a callable, which takes what is still missing."""


PaxConfig = Config
PaxPartial = Partial
ArgFactory = fdl.ArgFactory


def template_field(
  cls: Any = None, *, tags: Sequence[type[Tag]] = (), **kwargs: Any
) -> Any:
  """A field whose Config is left for its owner to build, in `create_child`.

  `cls` is the class to configure, None for no default, or
  `dataclasses.MISSING` for a required field; `kwargs` preset its fields.
  """
  metadata = _with_tags({_IS_TEMPLATE: True}, tags)
  if cls is None:
    return dataclasses.field(default=None, metadata=metadata)
  if cls is dataclasses.MISSING:
    return dataclasses.field(metadata=metadata)
  # Copies: two Configs of the owner must not share a nested one.
  make = lambda: Config(cls, **copy.deepcopy(kwargs))
  metadata[_DEFAULT_CONFIG] = make
  return dataclasses.field(default_factory=make, metadata=metadata)


def instance_field(
  default_factory: Callable[..., Any], *, tags: Sequence[type[Tag]] = ()
) -> Any:
  """A field configured as `Config(factory)` and built with its owner."""
  make = lambda: Config(default_factory)
  metadata = _with_tags({_DEFAULT_CONFIG: make}, tags)
  return dataclasses.field(default_factory=default_factory, metadata=metadata)


def field(
  *,
  default: Any = dataclasses.MISSING,
  default_factory: Any = dataclasses.MISSING,
  tags: Sequence[type[Tag]] = (),
  configurable_factory: bool = False,
  **kwargs: Any,
) -> Any:
  """`dataclasses.field` with Fiddle tags; a factory may be configurable."""
  if configurable_factory:
    if default_factory is dataclasses.MISSING:
      raise ValueError('configurable_factory needs a default_factory')
    return instance_field(default_factory, tags=tags)
  metadata = _with_tags(kwargs.pop('metadata', {}), tags)
  if default is not dataclasses.MISSING:
    kwargs['default'] = default
  if default_factory is not dataclasses.MISSING:
    kwargs['default_factory'] = default_factory
  return dataclasses.field(metadata=metadata, **kwargs)


def sub_config_field(cls: Any = None, *, lazy_ref: Any = None) -> Any:
  """The README's name of `template_field`; `lazy_ref` returns the class."""
  if cls is not None and lazy_ref is not None:
    raise TypeError('sub_config_field takes a class or lazy_ref, not both')
  return template_field(lazy_ref() if lazy_ref is not None else cls)


def build(config: Any) -> Any:
  """Builds every Config within `config`, except those in template fields.

  A Config that is referenced twice is built once. A layer passes the values
  that layers inherit (dtypes, mesh, initialiser) to the layers built with it.
  """

  def visit(value: Any, state: _daglish.MemoizedTraversal) -> Any:
    if not isinstance(value, fdl.Buildable):
      return state.map_children(value)
    templates = template_names(fdl.get_callable(value))
    arguments = {}
    for name, argument in value.__arguments__.items():
      if name in templates:
        arguments[name] = argument
        continue
      inherit(argument, value)
      arguments[name] = state.call(argument, _daglish.Attr(name))
    if 'parent' in {f.name for f in fields_of(fdl.get_callable(value))}:
      # A flax module is made detached; who assigns it becomes its parent.
      arguments.setdefault('parent', None)
    return _building.call_buildable(
      value, arguments, current_path=state.current_path
    )

  return _daglish.MemoizedTraversal.run(visit, config)


def instantiate(config: Any, **overrides: Any) -> Any:
  """Builds a copy of `config` with `overrides` assigned."""
  if isinstance(config, fdl.Buildable):
    config = copy.copy(config)
    for name, value in overrides.items():
      setattr(config, name, value)
    return build(config)
  if hasattr(config, 'Instantiate'):
    return config.Instantiate(**overrides)
  raise ValueError(
    f'Unknown configuration type {type(config)}; pass a pax_fiddle.Config'
  )


def inherit(child: Any, owner: Any) -> None:
  """Gives the unset inheritable fields of Config `child` the owner's values.

  `owner` is a layer or its Config. A field is inheritable when the child's
  class lists it in `INHERITED` and declares no default of its own for it.
  """
  if not isinstance(child, fdl.Config):
    return
  names = getattr(fdl.get_callable(child), 'INHERITED', ())
  for name in names:
    if name in child.__arguments__ or not hasattr(owner, name):
      continue
    if _is_redeclared(fdl.get_callable(child), name):
      continue
    setattr(child, name, copy.deepcopy(getattr(owner, name)))


def mesh_shape(
  ici: Sequence[int] | None, dcn: Sequence[int] | None
) -> list[int] | None:
  """Returns the element-wise product of the two shapes; None without ICI."""
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


def register_dataclass(cls: type[T]) -> type[T]:
  """Lets Fiddle see into values of a dataclass, and save them as JSON."""
  names = tuple(f.name for f in dataclasses.fields(cls))
  _daglish.register_node_traverser(
    cls,
    flatten_fn=lambda x: (tuple(getattr(x, n) for n in names), None),
    unflatten_fn=lambda values, _: cls(*values),
    path_elements_fn=lambda _: tuple(map(_daglish.Attr, names)),
  )
  return cls


def fields_of(cls: Any) -> tuple[dataclasses.Field, ...]:
  """Returns the dataclass fields of `cls`, none if it has no such thing."""
  return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def template_names(cls: Any) -> set[str]:
  """Returns the names of the template fields of `cls`."""
  return {f.name for f in fields_of(cls) if f.metadata.get(_IS_TEMPLATE)}


def owner_of(cls: Any) -> Any:
  """Returns `Linear` for `Linear.HParams`, any other callable as it is."""
  return getattr(cls, 'owner', None) or cls


def _is_redeclared(cls: Any, name: str) -> bool:
  base = cls.INHERITED[name]
  own = next(f for f in fields_of(cls) if f.name == name)
  return own.default is not base.default


def _check_names(cls: Any, names: Any) -> None:
  """Raises AttributeError, with a near name, for a field `cls` lacks."""
  fields = [f.name for f in fields_of(cls) if f.init]
  if not fields:
    return
  for name in names:
    if name.startswith('__') or name in fields:
      continue
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f' Did you mean {near[0]!r}?' if near else ''
    raise AttributeError(
      f'{_name(cls)} has no field {name!r}.{hint} Its fields: '
      f'{", ".join(sorted(fields))}.'
    )


def _value(config: fdl.Config, field_: dataclasses.Field) -> Any:
  if field_.name in config.__arguments__:
    return config.__arguments__[field_.name]
  if field_.default is not dataclasses.MISSING:
    return field_.default
  if field_.default_factory is not dataclasses.MISSING:
    raise ValueError(f"Can't copy {field_.name!r} from default_factory")
  raise ValueError(f"Can't copy {field_.name!r} from missing required value")


def _with_tags(metadata: Any, tags: Sequence[type[Tag]]) -> dict[Any, Any]:
  return {**metadata, _TAGS: tuple(tags)} if tags else dict(metadata)


def _name(cls: Any) -> str:
  return getattr(cls, '__name__', str(cls))
