# SPDX-License-Identifier: Apache-2.0
"""The kinds of fields: plain, built with their owner, or left as templates."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import fiddle as fdl

from praxis.pax_fiddle import autoconfig, metadata
from praxis.pax_fiddle.buildables import Config

Tags = type[fdl.Tag] | Collection[type[fdl.Tag]]


def field(
  *,
  default_factory: Any = dataclasses.MISSING,
  tags: Tags = (),
  metadata: Mapping[Any, Any] | None = None,
  configurable_factory: bool = False,
  **kwargs: Any,
) -> Any:
  """`dataclasses.field` with Fiddle tags; a factory may be configurable.

  A Config of the class then holds a Config of the factory, as it does of an
  `auto_config` function.

  Raises:
    ValueError: `configurable_factory` without a factory, or with an
      `auto_config` function, which is one anyway.
  """
  make = None
  if autoconfig.is_auto_config(default_factory):
    if configurable_factory:
      raise ValueError(
        'configurable_factory must be False for an auto_config function, '
        'which is configurable as it is'
      )
    make = default_factory.as_buildable
  elif configurable_factory:
    if default_factory is dataclasses.MISSING:
      raise ValueError('configurable_factory needs a default_factory')
    make = lambda: Config(default_factory)
  if default_factory is not dataclasses.MISSING:
    kwargs['default_factory'] = default_factory
  said = _metadata(metadata, tags=_listed(tags), buildable_initializer=make)
  return dataclasses.field(metadata=said, **kwargs)


fdl_field = field


def instance_field(
  default_factory: Callable[..., Any] | None, tags: Tags = ()
) -> Any:
  """A field configured as `Config(factory)` and built with its owner.

  Of a function the Config is what it would build (see `auto_config`); None
  stands for no default.
  """
  if default_factory is None:
    return field(default=None, tags=tags)
  if inspect.isfunction(default_factory):
    default_factory = autoconfig.auto_config(default_factory)
  is_auto = autoconfig.is_auto_config(default_factory)
  return field(
    default_factory=default_factory,
    tags=tags,
    configurable_factory=not is_auto,
  )


def template_field(
  template: Any = dataclasses.MISSING, tags: Tags = (), **kwargs: Any
) -> Any:
  """A field whose Config is left for its owner to build, in `create_child`.

  `template` is the class to configure (or a function, see `instance_field`),
  or None for no default; without it the field is required. `kwargs` preset
  fields of the Config.
  """
  if template is None or template is dataclasses.MISSING:
    said = _metadata(tags=_listed(tags), is_template=True)
    if template is None:
      return dataclasses.field(default=None, metadata=said)
    return dataclasses.field(metadata=said)
  if inspect.isfunction(template):
    template = autoconfig.auto_config(template)
  if autoconfig.is_auto_config(template):
    make = template.as_buildable
  else:
    # Copies: two Configs of the owner must not share a nested one.
    make = lambda: Config(template, **copy.deepcopy(kwargs))
  return _template_of(make, tags)


@dataclasses.dataclass(frozen=True)
class SubConfigFactory:
  """Makes the Config of a class, which may be named later than the field is."""

  # Returns the class.
  lazy_ref: Callable[[], Any]

  def get_class(self) -> Any:
    """Returns the class, which exists by now."""
    return self.lazy_ref()

  def __call__(self) -> Any:
    return Config(self.get_class())


@runtime_checkable
class OverrideSubConfigFieldProtocol(Protocol):
  """What says itself which field `sub_config_field` makes of it."""

  def __to_sub_config_field__(self) -> Any: ...


def sub_config_field(
  sub_config_cls: Any = None, *, lazy_ref: Callable[[], Any] | None = None
) -> Any:
  """The README's name of `template_field`.

  `lazy_ref` returns the class when a Config is made.
  """
  if sub_config_cls is not None and lazy_ref is not None:
    raise TypeError('sub_config_field takes a class or lazy_ref, not both')
  if lazy_ref is not None:
    return _template_of(SubConfigFactory(lazy_ref), ())
  if isinstance(sub_config_cls, OverrideSubConfigFieldProtocol):
    return sub_config_cls.__to_sub_config_field__()
  return template_field(sub_config_cls)


def _template_of(make: Callable[[], Any], tags: Tags) -> Any:
  said = _metadata(
    tags=_listed(tags), buildable_initializer=make, is_template=True
  )
  return dataclasses.field(default_factory=make, metadata=said)


def _metadata(
  given: Mapping[Any, Any] | None = None, **kwargs: Any
) -> dict[Any, Any]:
  return {**(given or {}), metadata.KEY: metadata.FieldMetadata(**kwargs)}


def _listed(tags: Tags) -> tuple[type[fdl.Tag], ...]:
  return (tags,) if isinstance(tags, type) else tuple(tags)
