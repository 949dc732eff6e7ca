# SPDX-License-Identifier: Apache-2.0
"""The search points of an experiment, and the settings they allow."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

from pax.tuning import points

# Constants of an experiment by what `--set` makes them.
Settings = dict[str, str]

# The constant that holds what `parameter_sweep` combines, and the one that
# holds the names of the constants it sets.
COMBINED_DECISION_ATTR = 'PARAMETER_SWEEP_COMBINATION'
COMBINED_DECISION_POINT_NAMES = 'COMBINED_DECISION_POINT_NAMES'


@dataclasses.dataclass(frozen=True)
class Decision:
  """One choice, which sets one constant or several together."""

  # The constants.
  names: tuple[str, ...]
  # What is chosen among: values, or tuples of one for each name.
  point: points.SearchPoint
  # The values of each constant; the point itself if it is not combined.
  columns: tuple[points.SearchPoint, ...]

  def settings(self, value: Any) -> Settings:
    """Returns what choosing `value` sets."""
    parts = (value,) if self.columns == (self.point,) else value
    cells = zip(self.names, self.columns, parts, strict=True)
    return {name: column.text(part) for name, column, part in cells}

  def sample(self, rng: random.Random) -> Settings:
    """Draws what to set."""
    return self.settings(self.point.sample(rng))


@dataclasses.dataclass(frozen=True)
class Space:
  """All choices of an experiment."""

  # In the order in which the experiment declares them.
  decisions: tuple[Decision, ...]

  @property
  def names(self) -> list[str]:
    """The constants that are searched."""
    return [name for decision in self.decisions for name in decision.names]

  @property
  def size(self) -> int | None:
    """How many settings there are; None when they cannot be counted."""
    counts = [decision.point.values for decision in self.decisions]
    if any(values is None for values in counts):
      return None
    return math.prod(len(values) for values in counts)

  def nth(self, index: int) -> Settings:
    """Returns settings by number, those of the last decision changing fastest.

    Raises:
      ValueError: a decision is over an interval of numbers.
    """
    found: list[Settings] = []
    for decision in reversed(self.decisions):
      values = decision.point.values
      if values is None:
        raise ValueError(
          f'{decision.names[0]} is a floatv, which has no list of values to'
          ' sweep; use oneof, or search with RandomSearch'
        )
      index, position = divmod(index, len(values))
      found.append(decision.settings(values[position]))
    return _joined(reversed(found))

  def sample(self, rng: random.Random) -> Settings:
    """Draws settings."""
    return _joined(decision.sample(rng) for decision in self.decisions)


def of(experiment: type) -> Space:
  """Returns the space that the constants of `experiment` span.

  Raises:
    ValueError: a constant that is combined with others is set on its own, or
      a search point is no constant.
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
  """Returns the constants that are search points, bases' first."""
  names = dict.fromkeys(
    name for cls in reversed(experiment.__mro__) for name in vars(cls)
  )
  found = {name: getattr(experiment, name, None) for name in names}
  return {n: p for n, p in found.items() if isinstance(p, points.SearchPoint)}


def enable_class_level_hyper_primitives(cls: type) -> None:
  """Checks that trials can set the search points of an experiment.

  That they stand in the class is enough; nothing is changed.

  Raises:
    ValueError: one is no constant.
  """
  if small := [name for name in search_points(cls) if not name.isupper()]:
    raise ValueError(
      f'{cls.__name__}.{small[0]} is a search point, and only constants are'
      f' searched; call it {small[0].upper()}'
    )


def _joined(parts: Any) -> Settings:
  settings: Settings = {}
  for part in parts:
    settings |= part
  return settings
