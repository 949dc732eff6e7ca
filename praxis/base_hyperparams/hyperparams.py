# SPDX-License-Identifier: Apache-2.0
"""BaseHyperParams: mutable records of parameters."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

import fiddle as fdl

from praxis import pax_fiddle
from praxis.struct_text import nested_struct_to_text


def _make_dataclass(cls: type, defaults: dict[str, Any]) -> inspect.Signature:
  """Makes a class with these defaults a dataclass; returns its signature."""
  try:
    dataclasses.dataclass(cls)
  except TypeError:  # A required field follows an optional one.
    for name, value in defaults.items():
      setattr(cls, name, _copy_of_field(value))
    dataclasses.dataclass(kw_only=True)(cls)
  pax_fiddle.register_dataclass(cls)
  _, *fields = inspect.signature(vars(cls)['__init__']).parameters.values()
  return inspect.Signature(fields)


def _copy_of_field(value: Any) -> Any:
  return copy.copy(value) if isinstance(value, dataclasses.Field) else value


def _refuse_silent_overrides(cls: FiddleHParamsClassStub) -> None:
  inherited = {f.name for b in cls.__bases__ for f in pax_fiddle.fields_of(b)}
  own = set(inspect.get_annotations(cls))
  for name in sorted((inherited & own) - set(cls._attribute_overrides)):
    raise AttributeError(
      f'Attribute {name} was overridden in {cls.__qualname__} while it is not '
      'explicitly listed in the _attribute_overrides list; list it there if '
      'that is intended'
    )


class FiddleHParamsClassStub(type):
  """Makes subclasses of BaseHyperParams dataclasses, or stubs of Configs.

  `lift_hparams` sets the `owner` of the `HParams` in the body of a layer:
  `Linear.HParams(...)` then equals `Config(Linear, ...)`.
  """

  owner: Any = None
  # The fields in the body of the class that have defaults.
  declared_defaults: dict[str, Any]
  # Read by Fiddle, as the signature of `__call__` has no fields.
  __signature__: inspect.Signature
  _attribute_overrides: tuple[str, ...]

  def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]):
    super().__init__(name, bases, body)
    cls.owner = None
    annotations = inspect.get_annotations(cls)
    annotations.pop('_attribute_overrides', None)
    if annotations or '__annotations__' in body:
      cls.__annotations__ = annotations
    # The dataclass decorator changes these fields.
    cls.declared_defaults = {
      name: _copy_of_field(body[name]) for name in annotations if name in body
    }
    if bases and not any(getattr(base, 'owner', None) for base in bases):
      _refuse_silent_overrides(cls)
    cls.__signature__ = _make_dataclass(cls, cls.declared_defaults)

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
    """The class that these parameters configure, or this class itself."""
    bodies = (vars(base) for base in cls.__mro__)
    return cls.owner or next((b['cls'] for b in bodies if 'cls' in b), cls)

  @property
  def fiddle_base_parameterizable_cls(cls) -> Any:
    """The class in whose body these parameters are, or None."""
    return cls.owner

  def config(cls, **kwargs: Any) -> pax_fiddle.Config:
    return pax_fiddle.Config(cls, **kwargs)

  def partial(cls, **kwargs: Any) -> pax_fiddle.Partial:
    return pax_fiddle.Partial(cls, **kwargs)


class BaseHyperParams(metaclass=FiddleHParamsClassStub):
  """A mutable record of parameters; also the base of a nested `HParams`.

  Subclasses become dataclasses. To change an inherited field's default, list it
  in `_attribute_overrides`.
  """

  _attribute_overrides: ClassVar[tuple[str, ...]] = ()
  _internal_frozen: ClassVar[bool] = False
  __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

  def __post_init__(self) -> None:
    for name, value in self._items():
      if isinstance(value, BaseHyperParams):
        object.__setattr__(self, name, value.clone())

  def __setattr__(self, name: str, value: Any) -> None:
    kind = type(self).__qualname__
    if self._internal_frozen:
      raise AttributeError(
        f'This HParam object is frozen: {self}; clone() it to change {name!r}'
      )
    names = [f.name for f in dataclasses.fields(self)]
    if name not in names:
      raise AttributeError(
        f"Attribute {name} doesn't exist on {kind}; it has {names}"
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
    self, source: Any, missing_fields_in_self: Sequence[str] | None = None
  ) -> Any:
    """Copies the fields of `source` except `cls`; returns self.

    Fields that `source` lacks keep their values.

    Raises:
      TypeError: `source` is not a BaseHyperParams.
      ValueError: self lacks a field of `source` that is not in
        `missing_fields_in_self`.
    """
    if not isinstance(source, BaseHyperParams):
      raise TypeError(
        f'copy_fields_from expects BaseHyperParams, got {type(source)}'
      )
    names = {f.name for f in dataclasses.fields(self)}
    for name, value in source._items():
      if name in names - {'cls'}:
        setattr(self, name, copy.deepcopy(value))
      elif name != 'cls' and name not in (missing_fields_in_self or ()):
        raise ValueError(
          f'Copying incompatible HParams: {name} not in self, a '
          f'{type(self).__qualname__}; list it in missing_fields_in_self'
        )
    return self

  def to_text(self, include_types: bool = False, separator: str = ':') -> Any:
    """Returns one sorted line `path : value` per leaf.

    Args:
      include_types: whether to return (text, {path: name of the type}).
      separator: between path and value.
    """
    return nested_struct_to_text(self, include_types, separator)

  def _items(self) -> list[tuple[str, Any]]:
    return [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]

  def _set_frozen(self, frozen: bool) -> None:
    object.__setattr__(self, '_internal_frozen', frozen)
    for _, value in self._items():
      if isinstance(value, BaseHyperParams):
        value._set_frozen(frozen)
