# SPDX-License-Identifier: Apache-2.0
"""Cases of a test that run by night only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def cases(*values: Any) -> list[Any]:
  """Returns parameters of `pytest.mark.parametrize` that run by night.

  A tuple has a value for each name.
  """
  return [
    pytest.param(
      *(x if isinstance(x, tuple) else (x,)), marks=pytest.mark.nightly
    )
    for x in values
  ]


def except_for(by_day: Collection[Any], values: Iterable[Any]) -> list[Any]:
  """Returns all values, those that are not of `by_day` as nightly cases."""
  return [x if x in by_day else cases(x)[0] for x in values]


def marked(values: Iterable[Any], by_night: Collection[Any]) -> list[Any]:
  """Returns all values, those of `by_night` as nightly cases."""
  return [cases(x)[0] if x in by_night else x for x in values]
