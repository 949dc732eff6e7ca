# SPDX-License-Identifier: Apache-2.0
"""mypy finds no faults, but in the modules that pyproject.toml lists."""

# bazel: size=large
# bazel: data=//:all_files
# bazel: deps=//paxml:modules
# bazel: deps=//tools/wheel:pax_modules
# bazel: deps=//tools/wheel:praxis_modules
# bazel: deps=@pypi//backports_zstd
# bazel: deps=@pypi//types_pyyaml
from __future__ import annotations

import pathlib
import sys

import pytest
from mypy import api

# Packages of other versions have other types.
pytestmark = pytest.mark.skipif(
  sys.version_info >= (3, 12), reason='types are those of the oldest Python'
)


def _check(*files: str) -> tuple[str, int]:
  """Returns the faults, and the exit code of mypy."""
  output, errors, code = api.run(['--cache-dir=/dev/null', *files])
  return output + errors, code


def test_the_tree_is_clean():
  faults, code = _check()
  assert code == 0, faults


def test_faults_are_found(tmp_path: pathlib.Path):
  bad = tmp_path / 'bad.py'
  bad.write_text(
    'def f(x: int | None) -> str:\n  return x + 1\nf(1, 2)\nf(3).no_such_name\n'
  )
  faults, code = _check(str(bad))
  assert code == 1
  for rule in ('operator', 'return-value', 'call-arg', 'attr-defined'):
    assert f'[{rule}]' in faults, faults
