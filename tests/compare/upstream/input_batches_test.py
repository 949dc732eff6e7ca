# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Inputs and Lingvo's adaptors return what those of upstream praxis return."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

import pytest

from tests.compare.upstream import run

_UPSTREAM = run.Upstream.from_environment()
_PROGRAM = pathlib.Path(__file__).absolute().with_name('input_batches.py')
_ROOT = _PROGRAM.parents[3]
_MIN_CASES = 200


@pytest.mark.skipif(not _UPSTREAM.exists(), reason=f'not at {_UPSTREAM}')
def test_inputs_return_the_same(tmp_path: pathlib.Path) -> None:
  theirs = _results(_UPSTREAM.source, tmp_path / 'upstream.json')
  ours = _results(_ROOT, tmp_path / 'ours.json')
  assert len(theirs) >= _MIN_CASES
  assert list(ours) == list(theirs)
  different = {k: (theirs[k], ours[k]) for k in ours if ours[k] != theirs[k]}
  assert not different


def _results(source: pathlib.Path, file: pathlib.Path) -> dict[str, Any]:
  subprocess.run(
    [_UPSTREAM.python, _PROGRAM, file],
    env=os.environ | {'PYTHONPATH': str(source), 'TF_CPP_MIN_LOG_LEVEL': '3'},
    cwd=file.parent,
    check=True,
    timeout=600,
  )
  return json.loads(file.read_text())
