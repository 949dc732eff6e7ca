# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The comparison finds differences of every kind; needs no upstream."""

from __future__ import annotations

import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.compare.upstream import compare, flatten, results


def _recorded(folder: pathlib.Path, value: Any) -> results.Results:
  recorded = results.Results()
  leaves = dict(flatten.flatten(value))
  recorded.add('case', results.Outcome(leaves=leaves), 1e-6)
  folder.mkdir()
  recorded.save(folder)
  return results.load(folder)


def _differences(tmp_path: pathlib.Path, theirs: Any, ours: Any) -> list[str]:
  both = _recorded(tmp_path / 'a', theirs), _recorded(tmp_path / 'b', ours)
  return compare.compare(*both)['case']


@pytest.mark.parametrize(
  'value',
  [
    {'x': np.float32([1, np.nan, np.inf])},
    [1, 2.5, None, 'text', True],
    jnp.ones(3, jnp.bfloat16),
    jnp.ones(3, jnp.int4),
    {},
  ],
)
def test_equal(value: Any, tmp_path: pathlib.Path) -> None:
  assert not _differences(tmp_path, value, value)


@pytest.mark.parametrize(
  ('theirs', 'ours', 'difference'),
  [
    ({'x': 1}, {'y': 1}, 'missing in'),
    (np.float32([1]), np.float32([1.001]), 'values differ'),
    (np.float32([1]), np.float16([1]), 'dtype'),
    (np.zeros((1, 2)), np.zeros(2), 'shape'),
    (np.float32([np.nan]), np.float32([1]), 'finite'),
    (np.float32([np.nan]), np.float32([np.inf]), 'inf and nan'),
    (np.float32([-2e38, 1]), np.float32([-2e38, 2]), 'values differ'),
    (np.int32([1]), np.int32([2]), 'upstream'),
    ('a', 'b', "upstream 'a', ours 'b'"),
    (None, False, 'upstream None, ours False'),
    ([], {}, 'upstream'),
  ],
)
def test_different(
  theirs: Any, ours: Any, difference: str, tmp_path: pathlib.Path
) -> None:
  assert any(difference in x for x in _differences(tmp_path, theirs, ours))


@pytest.mark.parametrize(
  ('path', 'theirs', 'ours', 'is_equal'),
  [
    ('grads.params.w', 2e-4, 2.01e-4, False),
    ('grads.params.w', 1e-6, 1e-6 + 5e-11, True),
    # The exact gradient is 0.
    ('grads.params.key.b', 2e-7, -5e-7, True),
    ('grads.params.key.b', 2e-4, -5e-4, False),
  ],
)
def test_floor_of_tolerances(
  path: str, theirs: float, ours: float, is_equal: bool, tmp_path: pathlib.Path
) -> None:
  both = [{path: np.asarray([x], np.float32)} for x in (theirs, ours)]
  assert not _differences(tmp_path, *both) == is_equal


def _raised(error_type: str, message: str) -> results.Outcome:
  types = {
    'ValueError': ['ValueError', 'Exception'],
    'AssertionError': ['AssertionError', 'Exception'],
    'UnicodeError': ['UnicodeError', 'ValueError', 'Exception'],
  }[error_type]
  error = {'types': types, 'message': message, 'traceback': ''}
  return results.Outcome(error=error)


@pytest.mark.parametrize(
  ('theirs', 'ours', 'is_equal'),
  [
    (_raised('ValueError', 'bad x'), _raised('UnicodeError', 'bad'), True),
    (_raised('UnicodeError', 'bad x'), _raised('ValueError', 'bad'), False),
    (_raised('AssertionError', ''), _raised('ValueError', 'bad'), True),
    (_raised('AssertionError', 'bad x'), _raised('ValueError', 'bad'), False),
    (_raised('ValueError', 'bad'), _raised('ValueError', 'poor'), False),
    (_raised('ValueError', 'bad'), results.Outcome(leaves={}), False),
    (results.Outcome(leaves={}), _raised('ValueError', 'bad'), False),
  ],
)
def test_errors(
  theirs: results.Outcome, ours: results.Outcome, is_equal: bool
) -> None:
  both = results.Results(), results.Results()
  for recorded, outcome in zip(both, (theirs, ours), strict=True):
    recorded.add('case', outcome, 1e-6, match='bad')
  assert not compare.compare(*both)['case'] == is_equal
