# SPDX-License-Identifier: Apache-2.0
"""Upstream paxml restores the checkpoints that Pax writes by Orbax."""

from __future__ import annotations

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
  subprocess.run(
    [_UPSTREAM.python, _PROGRAM, tmp_path / 'checkpoints', file],
    env=os.environ | {'PYTHONPATH': str(_UPSTREAM.source)},
    cwd=_UPSTREAM.source,
    check=True,
  )
  with np.load(file) as values:
    assert len(values) == len(leaves)
    for i, leaf in enumerate(leaves):
      np.testing.assert_array_equal(values[f'arr_{i}'], leaf)
      assert values[f'arr_{i}'].dtype == leaf.dtype
