# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Upstream paxml restores our checkpoints, and keeps those that we keep."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import checkpoints
from tests.compare.upstream import run
from tests.testing import paxml_checkpoints

_UPSTREAM = run.Upstream.from_environment()
_PROGRAM = pathlib.Path(__file__).with_name('read_checkpoint.py')
_OPTIONS_PROGRAM = pathlib.Path('tests/testing/manager_options.py')
_OPTION_RESULTS = pathlib.Path('tests/golden/checkpoint_manager_options.json')


@pytest.mark.skipif(not _UPSTREAM.exists(), reason=f'not at {_UPSTREAM}')
def test_paxml_restores_ours(tmp_path: pathlib.Path) -> None:
  shapes, treedef = jax.tree.flatten(paxml_checkpoints.shapes())
  leaves = [
    jnp.arange(x.size).reshape(x.shape).astype(x.dtype) + i
    for i, x in enumerate(shapes)
  ]
  options = checkpoints.CheckpointOptions(save_interval_steps=1)
  saver = checkpoints.create_checkpointer(options, str(tmp_path))
  saver.save(7, jax.tree.unflatten(treedef, leaves), {'examples': 7})
  saver.close()
  file = tmp_path / 'values.npz'
  _run_upstream(_PROGRAM, tmp_path / 'checkpoints', file)
  with np.load(file) as values:
    assert len(values) == len(leaves)
    for i, leaf in enumerate(leaves):
      np.testing.assert_array_equal(values[f'arr_{i}'], leaf)
      assert values[f'arr_{i}'].dtype == leaf.dtype


@pytest.mark.skipif(not _UPSTREAM.exists(), reason=f'not at {_UPSTREAM}')
def test_options_of_the_manager(tmp_path: pathlib.Path) -> None:
  file = tmp_path / 'results.json'
  _run_upstream(_OPTIONS_PROGRAM, file)
  results, expected = (
    json.loads(path.read_text()) for path in (file, _OPTION_RESULTS)
  )
  assert results == expected


def _run_upstream(program: pathlib.Path, *words: pathlib.Path) -> None:
  subprocess.run(
    [_UPSTREAM.python, program.resolve(), *words],
    env=os.environ | {'PYTHONPATH': str(_UPSTREAM.source)},
    cwd=_UPSTREAM.source,
    check=True,
  )
