# SPDX-License-Identifier: Apache-2.0
"""Search points: values of constants that a search chooses."""

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
  """The domain of a constant."""

  @property
  @abc.abstractmethod
  def values(self) -> Sequence[Any] | None:
    """All values in order; None for an interval of floats."""

  @property
  @abc.abstractmethod
  def example(self) -> Any:
    """A value, which has the type of all."""

  @abc.abstractmethod
  def sample(self, rng: random.Random) -> Any:
    """Samples a value."""

  def text(self, value: Any) -> str:
    """Returns `value` as text for `--set`."""
    return repr(value)


@dataclasses.dataclass(frozen=True)
class OneOf(SearchPoint):
  """A list of values of any type."""

  # The values; their texts differ.
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
    """The candidates by their text for `--set`."""
    return {_text(value, i): value for i, value in enumerate(self.candidates)}


@dataclasses.dataclass(frozen=True)
class FloatV(SearchPoint):
  """A float in a closed interval."""

  # The smallest value.
  min_value: float
  # The largest value.
  max_value: float
  # Distribution: uniform for 'linear', log-uniform for 'log', and its mirror
  # image for 'rlog', which is dense at the largest value.
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
    low, high, fraction = self.min_value, self.max_value, rng.random()
    if self.scale == 'linear':
      return low + fraction * (high - low)
    value = low * math.exp(fraction * math.log(high / low))
    return value if self.scale == 'log' else low + high - value


@dataclasses.dataclass(frozen=True)
class IntV(SearchPoint):
  """An integer in a closed interval."""

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


# Any, because they replace constants that are declared with another type.
def oneof(candidates: Sequence[Any]) -> Any:
  """Returns a search point with the values `candidates`."""
  return OneOf(tuple(candidates))


def floatv(min_value: float, max_value: float, scale: str = 'linear') -> Any:
  """Returns a search point for a float in [`min_value`, `max_value`].

  Args:
    min_value: smallest value.
    max_value: largest value.
    scale: 'linear', 'log' or 'rlog'; see `FloatV`.
  """
  return FloatV(min_value, max_value, scale)


def intv(min_value: int, max_value: int) -> Any:
  """Returns a search point for an integer in [`min_value`, `max_value`]."""
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
    # No literal has this value; its index identifies it.
    return f'candidate_{index}'
  return text
