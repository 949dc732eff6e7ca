# SPDX-License-Identifier: Apache-2.0
"""TimesFM 1.3 forecasts and trains with checkpoints that paxml wrote.

`timesfm_data` is what `timesfm_program.py write` and the other commands gave
with upstream's praxis and paxml.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from tests.compare.existing import programs

_PROGRAMS = programs.Programs.from_environment()
_PROGRAM = programs.HERE / 'timesfm_program.py'
_ADAPTERS = programs.HERE / 'timesfm_adapter_program.py'
_DATA = programs.HERE / 'timesfm_data'
_WANT = json.loads((_DATA / 'results.json').read_text())

pytestmark = pytest.mark.skipif(
  not _PROGRAMS.exists(), reason=f'not at {_PROGRAMS}'
)


def _check_equal(got: Any, want: Any) -> None:
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  return pathlib.Path(shutil.copytree(_DATA, tmp_path / 'data'))


@pytest.mark.parametrize('command', ['forecast', 'finetune'])
def test_results_are_those_of_upstream(command, folder, tmp_path):
  got = _PROGRAMS.results(_PROGRAM, command, folder, cwd=tmp_path)
  _check_equal(got, _WANT[command])


def test_every_checkpoint_of_upstream_is_restored(tmp_path):
  upstream = _PROGRAMS.upstream
  if not upstream.exists():
    pytest.skip(f'not at {upstream}')
  folder = tmp_path / 'written'
  want = _PROGRAMS.results(
    _PROGRAM, 'write', folder, cwd=tmp_path, library=upstream.source
  )
  got = _PROGRAMS.results(_PROGRAM, 'forecast', folder, cwd=tmp_path)
  assert set(got) == {'flax', 'gda'}
  for forecasts in got.values():
    _check_equal(forecasts, want['written'])


def test_adapters_are_those_of_upstream(tmp_path):
  upstream = _PROGRAMS.upstream
  if not upstream.exists():
    pytest.skip(f'not at {upstream}')

  def run(command, folder, **library):
    return _PROGRAMS.results(
      *(_ADAPTERS, command, _DATA, folder),
      cwd=tmp_path,
      paths=(_PROGRAMS.source('timesfm'),),
      **library,
    )

  theirs, ours = tmp_path / 'theirs', tmp_path / 'ours'
  want = run('train', theirs, library=upstream.source)
  _check_equal(run('train', ours), want)
  want = run('forecast', theirs, library=upstream.source)
  assert len(want) == 3
  for folder in (theirs, ours):
    _check_equal(run('forecast', folder), want)
