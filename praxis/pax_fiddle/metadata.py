# SPDX-License-Identifier: Apache-2.0
"""What a dataclass field says to Fiddle: tags, a default Config, its kind."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Collection
from typing import Any

import fiddle as fdl

# Where FieldMetadata stands in the metadata of a dataclass field.
KEY = 'pax.fiddle'
# {class: its table of fields when asked, and the fields}.
_known: weakref.WeakKeyDictionary[type, tuple[Any, tuple[Any, ...]]] = (
  weakref.WeakKeyDictionary()
)


@dataclasses.dataclass(frozen=True)
class FieldMetadata:
  """What `field` and its kin attach to a dataclass field."""

  # Tags that every Config of the class puts on the argument.
  tags: Collection[type[fdl.Tag]] = ()
  # Makes the value that a Config of the class has at first.
  buildable_initializer: Callable[[], Any] | None = None
  # Whether the Config stays one when its owner is built.
  is_template: bool = False


def field_metadata(dc_field: dataclasses.Field) -> FieldMetadata | None:
  """Returns what a field says to Fiddle, None for a plain dataclass field."""
  return dc_field.metadata.get(KEY)


def field_has_tag(dc_field: dataclasses.Field, tag: type[fdl.Tag]) -> bool:
  """Whether Configs of the class put `tag` on the argument of a field."""
  metadata = field_metadata(dc_field)
  return metadata is not None and tag in metadata.tags


def fields_of(cls: Any) -> tuple[dataclasses.Field, ...]:
  """Returns the dataclass fields of `cls`, none if it has no such thing."""
  if not dataclasses.is_dataclass(cls):
    return ()
  cls = cls if isinstance(cls, type) else type(cls)
  # A class that is being made has those of its base until it is a dataclass.
  table = cls.__dataclass_fields__
  known, fields = _known.get(cls, (None, ()))
  if known is not table:
    fields = dataclasses.fields(cls)
    _known[cls] = table, fields
  return fields
