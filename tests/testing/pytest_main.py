# SPDX-License-Identifier: Apache-2.0
"""Runs pytest on one file as Bazel wants a test to behave.

    pytest_main.py tests/some_test.py [options of pytest]

Understands --test_filter, sharding and the XML report; what a test writes goes
to Bazel's folder for it.
"""

# bazel: data=//:pyproject.toml
from __future__ import annotations

import os
import sys

import pytest

_NO_TESTS_COLLECTED = 5


class _Shard:
  """Keeps this shard's tests; counts files that are skipped as a whole."""

  def __init__(self, index: int, total: int):
    self._index = index
    self._total = total
    self.skipped_files = 0

  def pytest_collectreport(self, report: pytest.CollectReport) -> None:
    self.skipped_files += report.skipped

  def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
    items[:] = items[self._index :: self._total]


def _own_folder() -> str:
  """A folder for what this test writes, also for its libraries' caches."""
  folder = os.environ.get('TEST_TMPDIR', '/tmp')
  for name in ('HOME', 'MPLCONFIGDIR', 'XDG_CACHE_HOME'):
    os.environ[name] = folder
  return folder


def main(args: list[str]) -> int:
  folder = _own_folder()
  # The folder of this file, not of a package.
  sys.path.pop(0)
  options = ['-c', 'pyproject.toml', '-p', 'no:cacheprovider', '-q']
  # The interpreter's own packages may have plugins, which take time.
  options += ['--disable-plugin-autoload']
  options += [f'--basetemp={folder}/pytest']
  if report := os.environ.get('XML_OUTPUT_FILE'):
    options += [f'--junitxml={report}']
  if only := os.environ.get('TESTBRIDGE_TEST_ONLY'):
    options += ['-k', only]
  total = int(os.environ.get('TEST_TOTAL_SHARDS', '1'))
  if status := os.environ.get('TEST_SHARD_STATUS_FILE'):
    open(status, 'w').close()
  index = int(os.environ.get('TEST_SHARD_INDEX', '0'))
  shard = _Shard(index, total)
  files = [arg for arg in args if arg.endswith('.py')]
  if total > 1 and len(files) > 1:
    # Tests of a file share what they set up.
    others = {*files} - {*files[index::total]}
    args = [arg for arg in args if arg not in others]
    shard = _Shard(0, 1)
  code = pytest.main([*options, *args], plugins=[shard])
  if code == _NO_TESTS_COLLECTED and (total > 1 or shard.skipped_files):
    return 0
  return int(code)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
