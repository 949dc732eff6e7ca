# SPDX-License-Identifier: Apache-2.0
"""Sax's layers pass Sax's tests, and compute what they compute upstream."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare.existing import programs

_PROGRAMS = programs.Programs.from_environment()
_SAX = _PROGRAMS.source('sax')

pytestmark = pytest.mark.skipif(
  not _PROGRAMS.exists(), reason=f'not at {_PROGRAMS}'
)


def test_tests_of_sax_pass(tmp_path):
  test = _SAX / 'saxml/server/pax/lm/layers_test.py'
  _PROGRAMS.python(test, cwd=tmp_path, paths=(_SAX,))


def test_modules_of_the_server_import(tmp_path):
  program = programs.HERE / 'sax_imports.py'
  count = _PROGRAMS.results(program, _SAX, cwd=tmp_path, paths=(_SAX,))
  assert count == 25


@pytest.mark.parametrize(
  'test',
  [
    'branch_selection_test.py',
    'custom/servable_custom_model_test.py',
    'lm/params/template_test.py',
    'lm/servable_lm_common_test.py',
    'lm/servable_lm_model_test.py',
    'quantization_test.py',
  ],
)
def test_tests_of_servable_models_pass(test, tmp_path):
  _PROGRAMS.python(
    programs.HERE / 'sax_server_test_runner.py',
    _SAX / 'saxml/server/pax' / test,
    f'--test_srcdir={_SAX}',
    cwd=tmp_path,
    paths=(_SAX,),
  )


def test_layers_compute_what_they_compute_upstream(tmp_path):
  upstream = _PROGRAMS.upstream
  if not upstream.exists():
    pytest.skip(f'not at {upstream}')
  got, want = (
    _PROGRAMS.results(
      programs.HERE / 'sax_program.py',
      cwd=tmp_path,
      paths=(_SAX,),
      library=library,
    )
    for library in (programs.OURS, upstream.source)
  )
  assert len(got) == 11 and got.keys() == want.keys()
  for case, outputs in want.items():
    assert got[case].keys() == outputs.keys()
    for name, value in outputs.items():
      if isinstance(value, str):
        assert got[case][name] == value
      else:
        np.testing.assert_allclose(
          got[case][name], value, atol=1e-5, err_msg=f'{case} {name}'
        )
