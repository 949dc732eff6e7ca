# SPDX-License-Identifier: Apache-2.0
"""Each test of a target runs in one of its shards."""

# bazel: size=small
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

import pytest

_PROGRAM = pathlib.Path(__file__).with_name('pytest_main.py')


@pytest.mark.parametrize(
  ('files', 'shards'),
  [
    ('a', [['a1', 'a3'], ['a2']]),
    # Files are not divided.
    ('abc', [['a1', 'a2', 'a3', 'c1', 'c2', 'c3'], ['b1', 'b2', 'b3']]),
  ],
)
def test_shards(tmp_path, files, shards):
  (tmp_path / 'pyproject.toml').write_text('')
  for name in files:
    tests = (f'def test_{name}{i}():\n  pass\n' for i in (1, 2, 3))
    (tmp_path / f'{name}_test.py').write_text(''.join(tests))
  for index, names in enumerate(shards):
    assert _run(tmp_path, index) == [f'test_{name}' for name in names]


def test_a_shard_may_have_no_tests(tmp_path):
  (tmp_path / 'pyproject.toml').write_text('')
  (tmp_path / 'a_test.py').write_text('def test_a():\n  pass\n')
  # As one whose tests run by night.
  (tmp_path / 'b_test.py').write_text('')
  assert [_run(tmp_path, index) for index in (0, 1)] == [['test_a'], []]


def _run(folder, index):
  """Runs one of two shards; returns the names of its tests."""
  report = folder / f'{index}.xml'
  environment = {
    'TEST_SHARD_INDEX': f'{index}',
    'TEST_TMPDIR': f'{folder}',
    'TEST_TOTAL_SHARDS': '2',
    'XML_OUTPUT_FILE': f'{report}',
  }
  files = sorted(path.name for path in folder.glob('*_test.py'))
  subprocess.run(
    [sys.executable, str(_PROGRAM), *files],
    cwd=folder,
    env=os.environ | environment,
    check=True,
  )
  cases = ElementTree.parse(report).getroot().iter('testcase')
  return [case.get('name') for case in cases]
