# SPDX-License-Identifier: Apache-2.0
"""FiddleBaseParameterizable: objects whose fields are their parameters."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from typing import Any, ClassVar, Protocol, dataclass_transform

import fiddle as fdl

from praxis import pax_fiddle, struct_text
from praxis.base_hyperparams.hyperparams import (
  BaseHyperParams,
  FiddleHParamsClassStub,
)


class _Parameterizable(Protocol):
  HParams: ClassVar[Any]


def lift_hparams(cls: type[_Parameterizable]) -> None:
  """Moves the fields declared in `cls.HParams`, if any, onto `cls`.

  Raises:
    ValueError: a default is a Config, which all objects would share, or
      `cls.HParams` is no class of parameters.
  """
  bases = (b.HParams for b in cls.__mro__[1:] if hasattr(b, 'HParams'))
  base = next(bases, BaseHyperParams)
  nested = cls.__dict__.get('HParams')
  if nested is None:
    nested = FiddleHParamsClassStub(
      'HParams', (base,), {'__module__': cls.__module__}
    )
  if not isinstance(nested, FiddleHParamsClassStub):
    raise ValueError(
      f'For {cls}: PAX layers should no longer use nested HParams classes. '
      'Instead, add fields directly to the layer class; or derive HParams from '
      'BaseHyperParams'
    )
  declared = inspect.get_annotations(nested)
  cls.__annotations__ = {**inspect.get_annotations(cls), **declared}
  for name, value in nested.declared_defaults.items():
    setattr(cls, name, value)
  for name, value in cls.__dict__.items():
    if isinstance(value, fdl.Buildable):
      raise ValueError(
        f'the default of {cls.__name__}.{name} is a Config; use '
        'template_field(cls) or instance_field(cls)'
      )
  nested.owner, cls.HParams = cls, nested


def unannotated_defaults(cls: type) -> list[dataclasses.Field]:
  """Returns the inherited fields that `cls` assigns without an annotation.

  Dataclasses ignore such an assignment: the field keeps its default.
  """
  annotated = inspect.get_annotations(cls)
  return [
    field
    for base in cls.__mro__[1:2]
    for field in pax_fiddle.fields_of(base)
    if field.name in cls.__dict__ and field.name not in annotated
  ]


@dataclass_transform(
  kw_only_default=True,
  field_specifiers=(
    dataclasses.field,
    pax_fiddle.field,
    pax_fiddle.template_field,
    pax_fiddle.instance_field,
  ),
)
class FiddleBaseParameterizable:
  """Base class of configurable objects that are not layers."""

  # Name in logs, directories and summaries.
  name: str = ''
  # HParams(...) is Config(cls, ...). Subclasses may declare their fields in it.
  HParams: ClassVar[Any]

  def __init_subclass__(cls, **kwargs: Any) -> None:
    """Makes the class a dataclass with keyword arguments.

    Raises:
      TypeError: an inherited field is assigned without an annotation.
    """
    lift_hparams(cls)
    super().__init_subclass__(**kwargs)
    for field in unannotated_defaults(cls):
      raise TypeError(
        f'Class attribute `{cls.__qualname__}.{field.name}` overrides a '
        'dataclass field, but is missing a type annotation; annotate it, '
        f'`{field.name}: {field.type} = ...`, to give it another default'
      )
    dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
    _refuse_positional_arguments(cls)

  def __post_init__(self) -> None:
    pass

  @property
  def hparams(self) -> HParamsView:
    """A read-only view of the configuration; `clone()` returns a Config."""
    return HParamsView(config_of(self))

  _hparams = hparams

  @classmethod
  def make(cls, **kwargs: Any) -> Any:
    """Builds an object from the values of its fields.

    Raises:
      ValueError: a required field is missing.
    """
    required = {
      f.name
      for f in pax_fiddle.fields_of(cls)
      if f.default is f.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(kwargs)):
      raise ValueError(f'{cls.__name__}.make needs values of {missing}')
    return cls.config(**kwargs).Instantiate()

  @classmethod
  def config(cls, **kwargs: Any) -> pax_fiddle.Config:
    """Returns a Config of this class."""
    return pax_fiddle.Config(cls, **kwargs)

  @classmethod
  def partial(cls, **kwargs: Any) -> pax_fiddle.Partial:
    """Returns a Config that builds a function of the missing arguments."""
    return pax_fiddle.Partial(cls, **kwargs)


class HParamsView:
  """A read-only view of the Config that builds an equal object."""

  def __init__(self, config: pax_fiddle.Config):
    object.__setattr__(self, '_config', config)

  @property
  def cls(self) -> Any:
    """The class of the object."""
    return self._config.cls

  def clone(self) -> pax_fiddle.Config:
    """Returns a mutable Config that builds an equal object."""
    return self._config.clone()

  def to_text(self, include_types: bool = False, separator: str = ':') -> Any:
    """Returns one sorted line `path : value` per leaf, as a Config does."""
    return struct_text.nested_struct_to_text(
      self._config, include_types, separator
    )

  def __getattr__(self, name: str) -> Any:
    if name.startswith('_'):
      raise AttributeError(name)
    return getattr(self._config, name)

  def __setattr__(self, name: str, value: Any) -> None:
    kind = self._config.cls.__name__
    raise AttributeError(
      f'cannot set {name!r} of a {kind} that is built already; clone() its '
      'hparams, change the clone, and build it'
    )

  def __eq__(self, other: object) -> bool:
    return isinstance(other, HParamsView) and self._config == other._config


def config_of(owner: Any) -> pax_fiddle.Config:
  """Returns the Config of a built object, from the values of its fields."""
  values = {
    f.name: _unbuilt(getattr(owner, f.name))
    for f in dataclasses.fields(owner)
    if f.init and f.name != 'parent'
  }
  return pax_fiddle.Config(type(owner), **values)


def _unbuilt(value: Any) -> Any:
  if isinstance(value, fdl.Buildable):
    return copy.deepcopy(value)
  if isinstance(value, list | tuple) and not hasattr(value, '_fields'):
    return type(value)(_unbuilt(v) for v in value)
  if dataclasses.is_dataclass(value) and hasattr(type(value), 'HParams'):
    return config_of(value)
  return value


def _refuse_positional_arguments(cls: Any) -> None:
  init = cls.__init__

  @functools.wraps(init)
  def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
    if args:
      raise TypeError(
        'Only keyword arguments are supported when constructing '
        f'{type(self)}. Received {args} as positional arguments.'
      )
    init(self, **kwargs)

  cls.__init__ = wrapper


dataclasses.dataclass(kw_only=True, eq=False, repr=False)(
  FiddleBaseParameterizable
)
lift_hparams(FiddleBaseParameterizable)
FiddleBaseParameterizableBase = FiddleBaseParameterizable
