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
  """Returns those of `by_day`, and the other `values` as nightly cases."""
  return [*by_day, *cases(*(x for x in values if x not in by_day))]
