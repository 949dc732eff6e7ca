# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Each family of cases gives what upstream praxis and paxml give.

`run.py` is the same from the command line, with two families at a time.
"""

from __future__ import annotations

import pathlib

import pytest

from tests.compare.upstream import run

_UPSTREAM = run.Upstream.from_environment()


@pytest.mark.skipif(not _UPSTREAM.exists(), reason=f'not at {_UPSTREAM}')
@pytest.mark.parametrize('family', run.family_names())
def test_family_is_equal(family: str, tmp_path: pathlib.Path) -> None:
  report = run.run_family(_UPSTREAM, family, tmp_path)
  assert report.differences
  assert not report.failures
