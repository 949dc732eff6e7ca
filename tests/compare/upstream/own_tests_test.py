# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=own_tests_expected.txt,requirements.txt
"""Expected failures of upstream's own tests: format, matching; no upstream."""

from __future__ import annotations

import pathlib
import tomllib

import pytest
from packaging import requirements

from tests.compare.upstream import own_tests

_REPORT = own_tests.FileReport(
  'praxis/a_test.py', {'ATest.test_x': '', 'ATest.test_y': 'first\nsecond'}
)


def _expected(tmp_path: pathlib.Path, text: str) -> list[own_tests.Expected]:
  path = tmp_path / 'expected.txt'
  path.write_text(text)
  return own_tests.load_expected(path)


def test_failure_without_reason() -> None:
  assert own_tests.unexpected(_REPORT, []) == [
    'praxis/a_test.py::ATest.test_y: first'
  ]


def test_expected_failure(tmp_path: pathlib.Path) -> None:
  text = '# comment\n\npraxis/a_test.py::ATest.test_[y]*: a reason: private'
  expected = _expected(tmp_path, text)
  assert expected[0].reason == 'a reason: private'
  assert own_tests.unexpected(_REPORT, expected) == []


def test_expected_failure_that_passes(tmp_path: pathlib.Path) -> None:
  text = (
    'praxis/a_test.py::*y: r\npraxis/a_test.py::*x: r\npraxis/b_test.py::*: r'
  )
  [line] = own_tests.unexpected(_REPORT, _expected(tmp_path, text))
  assert line.startswith('praxis/a_test.py::*x: passes')


def test_other_lines(tmp_path: pathlib.Path) -> None:
  with pytest.raises(ValueError, match='expected `file'):
    _expected(tmp_path, 'praxis/a_test.py')


def test_outcome_of_subtests_is_that_of_the_first_failure(
  tmp_path: pathlib.Path,
) -> None:
  report = tmp_path / 'report.xml'
  case = '<testcase classname="a_test.ATest" name="test_x"'
  report.write_text(
    f'<suite>{case}><failure message="m"/></testcase>{case}/></suite>'
  )
  assert own_tests.load_outcomes(report) == {'ATest.test_x': 'm'}


def test_file_without_tests_fails(tmp_path: pathlib.Path) -> None:
  report = tmp_path / 'report.xml'
  report.write_text('<suite/>')
  assert own_tests.load_outcomes(report) == {'*module*': 'has no tests'}


def test_every_reason_is_well_formed() -> None:
  patterns = [e.pattern for e in own_tests.load_expected()]
  assert len(set(patterns)) == len(patterns)


def test_the_environment_of_upstream_runs_our_packages() -> None:
  folder = pathlib.Path(__file__).parent
  installed = {
    requirements.Requirement(line).name.lower().replace('_', '-')
    for line in (folder / 'requirements.txt').read_text().splitlines()
    if not line.startswith('#')
  }
  project = (folder.parents[2] / 'pyproject.toml').read_text()
  ours = tomllib.loads(project)['project']['dependencies']
  names = {requirements.Requirement(each).name.lower() for each in ours}
  assert {name.replace('_', '-') for name in names} <= installed
