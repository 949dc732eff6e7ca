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
  command = [sys.executable, str(_PROGRAM)]
  command += [f'{name}_test.py' for name in files]
  for index, names in enumerate(shards):
    report = tmp_path / f'{index}.xml'
    environment = {
      'TEST_SHARD_INDEX': f'{index}',
      'TEST_TMPDIR': f'{tmp_path}',
      'TEST_TOTAL_SHARDS': '2',
      'XML_OUTPUT_FILE': f'{report}',
    }
    subprocess.run(
      command, cwd=tmp_path, env=os.environ | environment, check=True
    )
    cases = ElementTree.parse(report).getroot().iter('testcase')
    assert [case.get('name') for case in cases] == [f'test_{x}' for x in names]
