# SPDX-License-Identifier: Apache-2.0
"""Base classes of configurable objects and of parameter classes.

Fields are declared on the configurable class, or in a nested class:

    class Cosine(FiddleBaseParameterizable):    class Cosine(...):
      total_steps: int = 0                        class HParams(BaseHParams):
                                                    total_steps: int = 0

Both give `Cosine.HParams(total_steps=9)`, a `Config(Cosine, total_steps=9)`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, dataclass_transform

import fiddle as fdl

from praxis import pax_fiddle
from praxis.struct_text import StrOverride as StrOverride
from praxis.struct_text import nested_struct_to_text as nested_struct_to_text
from praxis.struct_text import visit_nested_struct as visit_nested_struct

OverrideSubConfigFieldProtocol = pax_fiddle.OverrideSubConfigFieldProtocol
SubConfigFactory = pax_fiddle.SubConfigFactory
sub_config_field = pax_fiddle.sub_config_field
instantiate = pax_fiddle.instantiate


class _HParamsType(type):
  """Makes `Linear.HParams(...)` equivalent to `Config(Linear, ...)`."""

  owner: Any = None

  def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]):
    super().__init__(name, bases, body)
    cls.owner = None
    if name != 'HParams':  # Not nested: the class itself is configured.
      if bases:
        _refuse_silent_overrides(cls)
      dataclasses.dataclass(kw_only=True)(cls)
      # Fiddle reads the signature; that of `__call__` has no fields.
      _, *fields = inspect.signature(cls.__init__).parameters.values()
      cls.__signature__ = inspect.Signature(fields)
      pax_fiddle.register_dataclass(cls)

  def __call__(cls, *args: Any, **kwargs: Any) -> Any:
    if cls.owner:
      return pax_fiddle.Config(cls.owner, *args, **kwargs)
    return super().__call__(*args, **kwargs)

  def __instancecheck__(cls, value: Any) -> bool:
    if not cls.owner:
      return super().__instancecheck__(value)
    if not isinstance(value, fdl.Config):
      return False
    configured = fdl.get_callable(value)
    return isinstance(configured, type) and issubclass(configured, cls.owner)

  @property
  def cls(cls) -> Any:
    """The class whose nested `HParams` this is, or this class itself."""
    return cls.owner or cls

  def config(cls, **kwargs: Any) -> pax_fiddle.Config:
    return pax_fiddle.Config(cls, **kwargs)

  def partial(cls, **kwargs: Any) -> pax_fiddle.Partial:
    return pax_fiddle.Partial(cls, **kwargs)


class BaseHyperParams(metaclass=_HParamsType):
  """A mutable record of parameters; also the base of a nested `HParams`.

  Subclasses become keyword-only dataclasses. To change an inherited field's
  default, list it in `_attribute_overrides`.
  """

  _attribute_overrides: ClassVar[tuple[str, ...]] = ()
  _frozen: ClassVar[bool] = False

  def __post_init__(self) -> None:
    for name, value in self._items():
      if isinstance(value, BaseHyperParams):
        object.__setattr__(self, name, value.clone())

  def __setattr__(self, name: str, value: Any) -> None:
    kind = type(self).__name__
    if self._frozen:
      raise AttributeError(f'{kind} is frozen; clone() it to change {name!r}')
    names = [f.name for f in dataclasses.fields(self)]
    if name not in names:
      raise AttributeError(
        f'Attribute {name!r} does not exist on {kind}; it has {names}'
      )
    object.__setattr__(self, name, value)

  def freeze(self) -> None:
    """Makes later assignments fail, in nested parameters too."""
    self._set_frozen(True)

  def unfreeze(self) -> None:
    """Allows assignments again, in nested parameters too."""
    self._set_frozen(False)

  def clone(self) -> Any:
    """Returns a deep, unfrozen copy."""
    clone = copy.deepcopy(self)
    clone.unfreeze()
    return clone

  def set(self, **kwargs: Any) -> Any:
    """Assigns fields by keyword; returns self."""
    for name, value in kwargs.items():
      setattr(self, name, value)
    return self

  Set = set

  def copy_fields_from(
    self, source: Any, missing_fields_in_self: Sequence[str] = ()
  ) -> Any:
    """Copies the fields of `source` except `cls`; returns self.

    Raises:
      TypeError: `source` is not a BaseHyperParams.
      ValueError: a field exists on one side only and is not in
        `missing_fields_in_self`.
    """
    if not isinstance(source, BaseHyperParams):
      raise TypeError(
        f'copy_fields_from expects BaseHyperParams, got {type(source)}'
      )
    source_names = {f.name for f in dataclasses.fields(source)} - {'cls'}
    names = {f.name for f in dataclasses.fields(self)} - {'cls'}
    if unmatched := (source_names ^ names) - set(missing_fields_in_self):
      raise ValueError(
        f'Copying incompatible HParams from {type(source).__name__} to '
        f'{type(self).__name__}: {sorted(unmatched)} exist on one side only'
      )
    for name in source_names & names:
      setattr(self, name, copy.deepcopy(getattr(source, name)))
    return self

  def to_text(self, include_types: bool = False, separator: str = ':') -> str:
    """Returns one sorted line `path : value` per leaf."""
    return nested_struct_to_text(self, include_types, separator)

  def _items(self) -> list[tuple[str, Any]]:
    return [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]

  def _set_frozen(self, frozen: bool) -> None:
    object.__setattr__(self, '_frozen', frozen)
    for _, value in self._items():
      if isinstance(value, BaseHyperParams):
        value._set_frozen(frozen)


def lift_hparams(cls: type) -> None:
  """Moves the fields declared in `cls.HParams`, if any, onto `cls`.

  Raises:
    TypeError: `cls` redefines the default of an inherited field without an
      annotation, which dataclasses ignore.
    ValueError: a default is a Config, which all objects would share.
  """
  bases = (b.HParams for b in cls.__mro__[1:] if hasattr(b, 'HParams'))
  base = next(bases, BaseHyperParams)
  nested = cls.__dict__.get('HParams')
  if nested is None:
    nested = _HParamsType('HParams', (base,), {'__module__': cls.__module__})
  declared = inspect.get_annotations(nested)
  cls.__annotations__ = {**inspect.get_annotations(cls), **declared}
  for name in declared:
    if name in nested.__dict__:
      setattr(cls, name, nested.__dict__[name])
      delattr(nested, name)
  _check_defaults(cls)
  nested.owner, cls.HParams = cls, nested


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

  def __init_subclass__(cls, **kwargs: Any) -> None:
    lift_hparams(cls)
    super().__init_subclass__(**kwargs)
    dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)

  def __post_init__(self) -> None:
    pass

  @property
  def hparams(self) -> HParamsView:
    """A read-only view of the configuration; `clone()` returns a Config."""
    return HParamsView(config_of(self))

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

  def clone(self) -> pax_fiddle.Config:
    """Returns a mutable Config that builds an equal object."""
    return self._config.clone()

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

  __hash__ = None


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


def _check_defaults(cls: type) -> None:
  inherited = {f.name for f in pax_fiddle.fields_of(cls)}
  annotated = inspect.get_annotations(cls)
  for name, value in cls.__dict__.items():
    if name in inherited - {'name', 'parent'} and name not in annotated:
      raise TypeError(
        f'{cls.__name__}.{name} is a field of a base class; annotate it, '
        f'`{name}: <type> = ...`, to give it another default'
      )
    if isinstance(value, fdl.Buildable):
      raise ValueError(
        f'the default of {cls.__name__}.{name} is a Config; use '
        'template_field(cls) or instance_field(cls)'
      )


def _refuse_silent_overrides(cls: type) -> None:
  inherited = {f.name for b in cls.__bases__ for f in pax_fiddle.fields_of(b)}
  own = set(inspect.get_annotations(cls))
  if hidden := (inherited & own) - set(cls._attribute_overrides):
    raise AttributeError(
      f'{sorted(hidden)} of {cls.__name__} was overridden from its base; '
      'list it in _attribute_overrides if that is intended'
    )


dataclasses.dataclass(kw_only=True, eq=False, repr=False)(
  FiddleBaseParameterizable
)
lift_hparams(FiddleBaseParameterizable)
# Aliases that upstream has.
BaseParameterizable = FiddleBaseParameterizable
FiddleBaseParameterizableBase = FiddleBaseParameterizable
FiddleHParamsClassStub = _HParamsType
