# SPDX-License-Identifier: Apache-2.0
"""Domains of flags, fields and constants: the values that they may have.

A dataclass field declares its domain with its default:

  save_interval_steps: int = value_domains.field(5000, ge=1)
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

# Key of the domain in the metadata of a dataclass field.
KEY = 'domain'


class Domain(Protocol):
  """A set of values."""

  @property
  def text(self) -> str:
    """The values in words, after "must be"."""

  def contains(self, value: Any) -> bool:
    """Returns whether `value` is valid."""

  def example(self, value: Any) -> Any:
    """Returns a valid value to propose in place of `value`, or None."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
  """Finite numbers between bounds; a bound of None is no bound.

  Floats such as 1e3 are integers too.
  """

  ge: float | None = None
  gt: float | None = None
  le: float | None = None
  lt: float | None = None
  is_integer: bool = False

  @property
  def text(self) -> str:
    kind = 'an integer' if self.is_integer else 'a finite number'
    if self.ge is not None and self.le is not None:
      return f'{kind} from {_short(self.ge)} to {_short(self.le)}'
    bounds = (
      ('at least', self.ge),
      ('above', self.gt),
      ('at most', self.le),
      ('below', self.lt),
    )
    parts = [f'{word} {_short(x)}' for word, x in bounds if x is not None]
    return f'{kind} {" and ".join(parts)}'.rstrip()

  def contains(self, value: Any) -> bool:
    is_number = isinstance(value, numbers.Real)
    if not is_number or isinstance(value, bool):
      return False
    # An integer may be too large for a float.
    is_int = isinstance(value, numbers.Integral)
    if not is_int and not math.isfinite(value):
      return False
    if self.is_integer and value != int(value):
      return False
    return (
      (self.ge is None or value >= self.ge)
      and (self.gt is None or value > self.gt)
      and (self.le is None or value <= self.le)
      and (self.lt is None or value < self.lt)
    )

  def example(self, value: Any) -> Any:
    """Returns the bound that `value` exceeds."""
    if self.le is not None and self.contains(self.le):
      is_number = isinstance(value, numbers.Real)
      if is_number and value > self.le:
        return self.le
    return self.ge if self.ge is not None else self.le


@dataclasses.dataclass(frozen=True)
class OneOf:
  """A finite set."""

  values: Collection[Any]

  @property
  def text(self) -> str:
    return f'one of {", ".join(map(str, self.values))}'

  def contains(self, value: Any) -> bool:
    return value in self.values

  def example(self, value: Any) -> Any:
    """Returns None: the text lists all values."""
    return None


@dataclasses.dataclass(frozen=True)
class Matching:
  """Strings that match a regular expression."""

  pattern: str
  text: str
  example_value: str

  def contains(self, value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(self.pattern, value))

  def example(self, value: Any) -> Any:
    """Returns a string that matches."""
    return self.example_value


@dataclasses.dataclass(frozen=True)
class SequenceOf:
  """Sequences of elements of a domain."""

  element: Domain
  text: str

  def contains(self, value: Any) -> bool:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
      return False
    return all(map(self.element.contains, value))

  def example(self, value: Any) -> Any:
    """Returns None."""
    return None


@dataclasses.dataclass(frozen=True)
class OrNone:
  """A domain and None."""

  domain: Domain

  @property
  def text(self) -> str:
    return f'{self.domain.text}, or None'

  def contains(self, value: Any) -> bool:
    return value is None or self.domain.contains(value)

  def example(self, value: Any) -> Any:
    """Returns a value of the domain."""
    return self.domain.example(value)


@dataclasses.dataclass(frozen=True)
class OrByPath:
  """A domain, and dicts of regular expressions of paths to its values."""

  domain: Domain

  @property
  def text(self) -> str:
    return f'{self.domain.text}, or a dict of regular expressions to such'

  def contains(self, value: Any) -> bool:
    if not isinstance(value, Mapping):
      return self.domain.contains(value)
    return all(
      _is_expression(key) and self.domain.contains(x)
      for key, x in value.items()
    )

  def example(self, value: Any) -> Any:
    """Returns a value of the domain."""
    return self.domain.example(value)


def _is_expression(key: Any) -> bool:
  try:
    re.compile(key)
  except (re.error, TypeError):
    return False
  return isinstance(key, str)


def _short(bound: float) -> str:
  return f'{bound:g}' if isinstance(bound, float) else str(bound)


def field(default: Any, domain: Domain | None = None, **bounds: Any) -> Any:
  """Returns a dataclass field with a domain.

  Args:
    default: the value of the field where none is given.
    domain: None is the interval of `bounds`, of integers if they and the
      default are integers.
    **bounds: arguments of `Interval`.
  """
  domain = domain or interval(default, **bounds)
  return dataclasses.field(default=default, metadata={KEY: domain})


def interval(default: Any = None, **bounds: Any) -> Interval:
  """Returns an interval, of integers if `default` and the bounds are ints."""
  values = [v for v in (default, *bounds.values()) if v is not None]
  is_integer = not any(isinstance(value, float) for value in values)
  return Interval(**({'is_integer': is_integer} | bounds))


def setting(name: str, value: Any) -> str:
  """Returns NAME=VALUE for a flag, without spaces."""
  if isinstance(value, float):
    value = f'{value:g}'
  elif isinstance(value, list | tuple):
    value = str(list(value)).replace(' ', '')
  return f'{name}={value}'


def domains_of(cls: type) -> Iterator[tuple[dataclasses.Field[Any], Domain]]:
  """Yields the fields of a dataclass that have a domain."""
  for field_ in dataclasses.fields(cls):
    if KEY in field_.metadata:
      yield field_, field_.metadata[KEY]


def is_valid(field_: dataclasses.Field[Any], value: Any) -> bool:
  """Returns whether a field may have this value; None if its type allows it."""
  if value is None and (field_.default is None or 'None' in str(field_.type)):
    return True
  return field_.metadata[KEY].contains(value)
