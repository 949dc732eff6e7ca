# SPDX-License-Identifier: Apache-2.0
"""The tree is written as ruff, clang-format and buildifier want it."""

# bazel: data=//:all_files
from __future__ import annotations

import pathlib

import pytest

from tools import lint


@pytest.mark.parametrize('name', lint.CHECKS)
def test_the_tree_is_clean(name):
  try:
    assert lint.check(pathlib.Path.cwd(), name, fix=False)
  except lint.MissingProgramError as e:
    pytest.skip(str(e))


def test_rules_that_a_file_does_not_load_are_found(tmp_path):
  path = tmp_path / 'BUILD'
  path.write_text('py_library(name = "a")\n\ncc_library(name = "b")\n')
  try:
    assert not lint.check(tmp_path, 'buildifier', fix=False)
  except lint.MissingProgramError as e:
    pytest.skip(str(e))
  assert lint.check(tmp_path, 'buildifier', fix=True)
  assert lint.check(tmp_path, 'buildifier', fix=False)
  assert path.read_text().count('load("@rules_') == 2


def test_bad_files_are_found(tmp_path):
  (tmp_path / 'bad.py').write_text('import os\nx = {  "a":1}\n')
  (tmp_path / 'bad.h').write_text('int   x;\n')
  for name in ('ruff check', 'ruff format', 'clang-format'):
    assert not lint.check(tmp_path, name, fix=False)
  assert lint.check(tmp_path, 'ruff format', fix=True)
  assert lint.check(tmp_path, 'ruff format', fix=False)
