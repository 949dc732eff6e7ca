# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=//third_party/python:all_files
"""The identity of the interpreter, which is in the keys of Bazel's actions."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

_IDENTITY = pathlib.Path('third_party/python/identity.py').absolute()


def _facts(python: str | pathlib.Path) -> list[str]:
  out = subprocess.check_output([python, '-I', '-S', _IDENTITY], text=True)
  return out.splitlines()


@pytest.fixture
def copy(tmp_path) -> pathlib.Path:
  """A copy of this interpreter and its standard library."""
  stdlib = pathlib.Path(sysconfig.get_path('stdlib'))
  lib = tmp_path / 'lib' / stdlib.name
  ignored = shutil.ignore_patterns(
    '__pycache__', 'config-*', 'dist-packages', 'site-packages', 'test', '*.a'
  )
  shutil.copytree(stdlib, lib, ignore=ignored)
  (tmp_path / 'bin').mkdir()
  python = tmp_path / 'bin/python3'
  shutil.copy(os.path.realpath(sys.executable), python)
  return python


def test_a_patch_of_the_standard_library_changes_it(copy):
  facts = _facts(copy)
  assert facts[0] == str(copy)
  assert facts[2] == '{}.{}'.format(*sys.version_info)
  module = copy.parents[1] / f'lib/python{facts[2]}/textwrap.py'
  text = module.read_text()
  module.write_text(f'{text}\n# Patched.\n')
  patched = _facts(copy)
  assert patched[:4] == facts[:4]
  assert patched[4] != facts[4]
  module.write_text(text)
  assert _facts(copy) == facts


def test_another_program_changes_it(copy):
  facts = _facts(copy)
  with copy.open('ab') as f:
    f.write(b'patched')
  patched = _facts(copy)
  assert patched[:4] == facts[:4]
  assert patched[4] != facts[4]


@pytest.mark.skipif('TEST_BINARY' not in os.environ, reason='of Bazel')
def test_programs_contain_it():
  with open(os.environ['TEST_BINARY'], encoding='utf-8') as f:
    first, second = f.readline(), f.readline()
  exe, *_, identity = _facts(sys.executable)
  assert (first, second) == (f'#!{exe}\n', f'# {identity}\n')


@pytest.mark.parametrize(
  'version', [(3, 10, 12, 'final', 0), (3, 11, 0, 'candidate', 1)]
)
def test_a_version_without_packages_is_refused(version):
  program = (
    f'import runpy, sys; sys.version_info = {version};'
    f' runpy.run_path({str(_IDENTITY)!r}, run_name="__main__")'
  )
  done = subprocess.run(
    [sys.executable, '-I', '-S', '-c', program],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 1 and not done.stdout
  assert 'set PAX_PYTHON to a Python 3.11 to 3.14' in done.stderr
