# SPDX-License-Identifier: Apache-2.0
"""Search points: what stands in an experiment where a constant is searched."""

from __future__ import annotations

import abc
import ast
import dataclasses
import enum
import functools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

_SCALES = ('linear', 'log', 'rlog')


class SearchPoint(abc.ABC):
  """The values that a constant may take."""

  @property
  @abc.abstractmethod
  def values(self) -> Sequence[Any] | None:
    """All of them in order; None when there are too many to count."""

  @property
  @abc.abstractmethod
  def example(self) -> Any:
    """One of them, which has the type of the others."""

  @abc.abstractmethod
  def sample(self, rng: random.Random) -> Any:
    """Draws one of them."""

  def text(self, value: Any) -> str:
    """Returns `value` as `--set` takes it."""
    return repr(value)


@dataclasses.dataclass(frozen=True)
class OneOf(SearchPoint):
  """One of some values of any type."""

  # The values, each with another text.
  candidates: tuple[Any, ...]

  def __post_init__(self):
    if not self.candidates:
      raise ValueError('oneof wants at least 1 candidate, got none')
    if len(self.by_text) != len(self.candidates):
      raise ValueError(
        f'oneof wants candidates that differ, got {list(self.candidates)}'
      )

  @property
  def values(self) -> Sequence[Any]:
    return self.candidates

  @property
  def example(self) -> Any:
    return self.candidates[0]

  def sample(self, rng: random.Random) -> Any:
    return rng.choice(self.candidates)

  def text(self, value: Any) -> str:
    return _text(value, self.candidates.index(value))

  @functools.cached_property
  def by_text(self) -> Mapping[str, Any]:
    """The candidates by what `--set` calls them."""
    return {_text(value, i): value for i, value in enumerate(self.candidates)}


@dataclasses.dataclass(frozen=True)
class FloatV(SearchPoint):
  """A number in an interval."""

  # The smallest value.
  min_value: float
  # The largest value.
  max_value: float
  # How values are spread: 'linear' evenly, 'log' evenly over their logarithms,
  # 'rlog' the same seen from the largest.
  scale: str = 'linear'

  def __post_init__(self):
    if not self.min_value < self.max_value:
      raise ValueError(
        'floatv wants min_value < max_value, got'
        f' {self.min_value} and {self.max_value}'
      )
    if self.scale not in _SCALES:
      raise ValueError(
        f'scale must be one of {", ".join(_SCALES)}, got {self.scale!r}'
      )
    if self.scale != 'linear' and self.min_value <= 0:
      raise ValueError(
        f'floatv with scale={self.scale!r} wants min_value > 0, got'
        f' {self.min_value}'
      )

  @property
  def values(self) -> None:
    return None

  @property
  def example(self) -> float:
    return float(self.min_value)

  def sample(self, rng: random.Random) -> float:
    low, high, share = self.min_value, self.max_value, rng.random()
    if self.scale == 'linear':
      return low + share * (high - low)
    drawn = low * math.exp(share * math.log(high / low))
    return drawn if self.scale == 'log' else low + high - drawn


@dataclasses.dataclass(frozen=True)
class IntV(SearchPoint):
  """A whole number in an interval, its ends included."""

  # The smallest value.
  min_value: int
  # The largest value.
  max_value: int

  def __post_init__(self):
    if not self.min_value <= self.max_value:
      raise ValueError(
        'intv wants min_value <= max_value, got'
        f' {self.min_value} and {self.max_value}'
      )

  @property
  def values(self) -> Sequence[int]:
    return range(self.min_value, self.max_value + 1)

  @property
  def example(self) -> int:
    return self.min_value

  def sample(self, rng: random.Random) -> int:
    return rng.randint(self.min_value, self.max_value)


# They stand where a constant of another type is declared, hence Any.
def oneof(candidates: Sequence[Any]) -> Any:
  """Returns the search point of one of `candidates`."""
  return OneOf(tuple(candidates))


def floatv(min_value: float, max_value: float, scale: str = 'linear') -> Any:
  """Returns the search point of a number in [`min_value`, `max_value`]."""
  return FloatV(min_value, max_value, scale)


def intv(min_value: int, max_value: int) -> Any:
  """Returns the search point of a whole number, both ends included."""
  return IntV(min_value, max_value)


def _text(value: Any, index: int) -> str:
  if isinstance(value, enum.Enum):
    return value.name
  if isinstance(value, type):
    return f'{value.__module__}.{value.__qualname__}'
  text = repr(value)
  try:
    ast.literal_eval(text)
  except (ValueError, SyntaxError):
    # No text makes this value again, but its place in the list does.
    return f'candidate_{index}'
  return text
