# SPDX-License-Identifier: Apache-2.0
"""Directories of trials, named after the values of the trial."""

from __future__ import annotations

import inspect
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from pax.paxml_api import pyglove_space
from pax.tuning import space


class TrialDirectoryNameGenerator:
  """Names directories `<root>/<trial>/x=1|y=abc` after the values of a trial.

  The names of decisions are left out if they are long in all. The value of a
  custom decision is `(CUSTOM)`.
  """

  _UNFRIENDLY_CHARACTERS = re.compile(r'[^\w\d=_-{}\(\).,\[\]]+')
  _REPLACEMENTS = str.maketrans({':': '=', '[': '{', ']': '}', ',': '.'})

  def __init__(
    self,
    root_dir: pathlib.Path,
    search_space: Any,
    combined_decision_point_names: Sequence[str] | None = None,
    total_name_length_threshold: int = 64,
  ):
    """Reads the names of the decisions.

    Args:
      root_dir: Directory of the study.
      search_space: The `pg.hyper.DynamicEvaluationContext` of the study.
      combined_decision_point_names: Constants that one decision sets together.
      total_name_length_threshold: Number of characters of all names from which
        on they are left out.

    Raises:
      ValueError: Constants are set together, but there are other decisions.
    """
    names = list(search_space.hyper_dict)
    if combined_decision_point_names:
      if names != [space.COMBINED_DECISION_ATTR]:
        raise ValueError(
          f'{space.COMBINED_DECISION_ATTR} must be the only decision if it sets'
          f' {list(combined_decision_point_names)} together, got {names}'
        )
      names = list(combined_decision_point_names)
    self._root_dir = root_dir
    self._search_space = search_space
    self._names = names
    self._is_combined = bool(combined_decision_point_names)
    self._has_names = sum(map(len, names)) < total_name_length_threshold

  def parameter_values(self) -> list[tuple[str, Any]]:
    """Returns (name, value) of each decision of the current trial."""
    custom = pyglove_space.load_pyglove().hyper.CustomHyper
    values: list[Any] = []
    for primitive in self._search_space.hyper_dict.values():
      # Evaluation takes the decisions of a trial in their order.
      value = self._search_space.evaluate(primitive)
      values.append('(CUSTOM)' if isinstance(primitive, custom) else value)
    if self._is_combined:
      [values] = values
    return list(zip(self._names, values, strict=True))

  def format_value(self, value: Any) -> str:
    """Returns the value as a part of a file name."""
    if isinstance(value, float):
      return f'{value:.3e}'
    if isinstance(value, int):
      return str(value)
    if inspect.isclass(value):
      return value.__name__
    text = str(value).translate(self._REPLACEMENTS)
    return self._UNFRIENDLY_CHARACTERS.sub('', text)

  def dirname(self, trial_id: int) -> pathlib.Path:
    """Returns the directory of the current trial, with this number."""
    values = [(n, self.format_value(v)) for n, v in self.parameter_values()]
    if self._has_names:
      items = [f'{name}={value}' for name, value in values]
    else:
      items = [value for _, value in values]
    return self._root_dir / str(trial_id) / '|'.join(items)
