# SPDX-License-Identifier: Apache-2.0
"""The search space that the search points of an experiment span."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from typing import Any

from pax.tuning import hyper_constants, points

# Texts for `--set` by the name of the constant.
Settings = dict[str, str]

# Constants that hold the rows of `parameter_sweep`, and the names of the
# constants that a row sets.
COMBINED_DECISION_ATTR = 'PARAMETER_SWEEP_COMBINATION'
COMBINED_DECISION_POINT_NAMES = 'COMBINED_DECISION_POINT_NAMES'


@dataclasses.dataclass(frozen=True)
class Decision:
  """A choice that sets one constant, or several together."""

  # The constants.
  names: tuple[str, ...]
  # The values, or tuples with one value per name.
  point: points.SearchPoint
  # The values of each constant; `point` itself for a single constant.
  columns: tuple[points.SearchPoint, ...]

  def settings(self, value: Any) -> Settings:
    """Returns the settings of a value of the point."""
    parts = (value,) if self.columns == (self.point,) else value
    cells = zip(self.names, self.columns, parts, strict=True)
    return {name: column.text(part) for name, column, part in cells}

  def sample(self, rng: random.Random) -> Settings:
    """Samples settings."""
    return self.settings(self.point.sample(rng))


@dataclasses.dataclass(frozen=True)
class Space:
  """All decisions of an experiment."""

  # In the order of declaration.
  decisions: tuple[Decision, ...]

  @property
  def names(self) -> list[str]:
    """The searched constants."""
    return [name for decision in self.decisions for name in decision.names]

  @property
  def size(self) -> int | None:
    """Number of different settings; None with an interval of floats."""
    size = 1
    for decision in self.decisions:
      if decision.point.values is None:
        return None
      size *= len(decision.point.values)
    return size

  def nth(self, index: int) -> Settings:
    """Returns settings by index; the last decision varies fastest.

    Raises:
      ValueError: a decision is an interval of floats.
    """
    settings: list[Settings] = []
    for decision in reversed(self.decisions):
      values = decision.point.values
      if values is None:
        raise ValueError(
          f'{decision.names[0]} is a floatv, which has no list of values to'
          ' sweep; use oneof, or search with RandomSearch'
        )
      index, position = divmod(index, len(values))
      settings.append(decision.settings(values[position]))
    return _merge(reversed(settings))

  def sample(self, rng: random.Random) -> Settings:
    """Samples settings of all decisions."""
    return _merge(decision.sample(rng) for decision in self.decisions)


def of(experiment: type) -> Space:
  """Returns the search space of an experiment.

  Raises:
    ValueError: one of several constants of a combination is fixed, or a search
      point is no constant.
  """
  enable_class_level_hyper_primitives(experiment)
  free = search_points(experiment)
  decisions: list[Decision] = []
  if rows := getattr(experiment, COMBINED_DECISION_ATTR, None):
    names = getattr(experiment, COMBINED_DECISION_POINT_NAMES)
    if fixed := [name for name in names if name not in free]:
      raise ValueError(
        f'{experiment.__name__} sweeps {", ".join(names)} together, so'
        f' {fixed[0]} cannot be set alone'
      )
    columns = tuple(free.pop(name) for name in names)
    decisions.append(Decision(tuple(names), points.OneOf(rows), columns))
  for name, point in free.items():
    decisions.append(Decision((name,), point, (point,)))
  return Space(tuple(decisions))


def search_points(experiment: type) -> dict[str, points.SearchPoint]:
  """Returns the constants that are search points, those of bases first."""
  names = dict.fromkeys(
    name for cls in reversed(experiment.__mro__) for name in vars(cls)
  )
  values = {name: getattr(experiment, name, None) for name in names}
  return {n: p for n, p in values.items() if isinstance(p, points.SearchPoint)}


def enable_class_level_hyper_primitives(cls: type) -> None:
  """Checks that all search points of an experiment are constants.

  Hyper primitives of PyGlove in its body become search points.

  Raises:
    ValueError: one has a lower-case name.
  """
  hyper_constants.convert_hyper_primitives(cls)
  if names := [name for name in search_points(cls) if not name.isupper()]:
    raise ValueError(
      f'{cls.__name__}.{names[0]} is a search point, and only constants are'
      f' searched; rename it to {names[0].upper()}'
    )


def _merge(parts: Iterable[Settings]) -> Settings:
  settings: Settings = {}
  for part in parts:
    settings |= part
  return settings
