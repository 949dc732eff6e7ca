# SPDX-License-Identifier: Apache-2.0
"""Paths of the data files of tests."""

from __future__ import annotations

import importlib
import os


def test_src_dir_path(relative_path: str) -> str:
  """Returns the path of a file below paxml.

  Bazel's TEST_SRCDIR contains it; without Bazel, the installed package does.
  """
  if runfiles := os.environ.get('TEST_SRCDIR'):
    return os.path.join(runfiles, '__main__/paxml', relative_path)
  [folder] = importlib.import_module('paxml').__path__
  return os.path.join(folder, relative_path)
