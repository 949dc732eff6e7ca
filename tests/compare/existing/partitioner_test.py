# SPDX-License-Identifier: Apache-2.0
"""A program with partitioners computes what it computes upstream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compare.existing import programs

_PROGRAMS = programs.Programs.from_environment()

pytestmark = pytest.mark.skipif(
  not (_PROGRAMS.exists() and _PROGRAMS.upstream.exists()),
  reason=f'not at {_PROGRAMS}',
)


def _check_equal(got: Any, want: Any, path: str = '') -> None:
  if isinstance(want, dict):
    assert got.keys() == want.keys(), path
    for key, value in want.items():
      _check_equal(got[key], value, f'{path}/{key}')
  elif isinstance(want, list):
    assert len(got) == len(want), path
    for i, value in enumerate(want):
      _check_equal(got[i], value, f'{path}[{i}]')
  elif isinstance(want, float):
    assert got == pytest.approx(want, rel=1e-5, abs=1e-5), path
  else:
    assert got == want, path


def test_steps_states_and_checkpoints_are_those_of_upstream(tmp_path):
  got, want = (
    _PROGRAMS.results(
      programs.HERE / 'partitioner_program.py', cwd=tmp_path, library=library
    )
    for library in (programs.OURS, _PROGRAMS.upstream.source)
  )
  _check_equal(got, want)
