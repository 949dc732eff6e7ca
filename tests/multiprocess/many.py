# SPDX-License-Identifier: Apache-2.0
"""Tiny runs of one, two or four processes, which have four devices together."""

from __future__ import annotations

import pathlib

import numpy as np

from tests.integration import binary

MESH = '--set=ICI_MESH_SHAPE=[1,4,1]'
_DEVICES = 4
_ROWS = 8
_SAVES = ('--set=SAVE_EVERY=5', '--set=EVAL_EVERY=5', '--eval_on_test')


def train(
  directory: pathlib.Path,
  *words: str,
  count: int,
  steps: int = 20,
  exp: str = 'TinySpmd',
) -> None:
  """Runs as `count` processes to their end."""
  processes = binary.start_processes(
    exp,
    directory,
    *words,
    *_SAVES,
    f'--set=BATCH_SIZE={_ROWS // count}',
    f'--set=NUM_STEPS={steps}',
    count=count,
    devices=_DEVICES // count,
  )
  ended = binary.wait(processes)
  assert [e.returncode for e in ended] == [0] * count, ended


def single(directory: pathlib.Path) -> pathlib.Path:
  """Trains by one process; returns the directory."""
  ended = binary.run('TinySpmd', directory, MESH, *_SAVES, devices=_DEVICES)
  assert ended.returncode == 0, ended.stderr
  return directory


def numbers(directory: pathlib.Path) -> dict[tuple[str, int, str], float]:
  """{(split, step, name): value} of losses and metrics."""
  return {
    (record['split'], record['step'], name): value
    for record in binary.records(directory)
    for name, value in record.items()
    if name == 'loss' or name.startswith('Metrics/')
  }


def assert_same(directory: pathlib.Path, wanted: pathlib.Path) -> None:
  """Losses and metrics of every split are those of another run."""
  found, expected = numbers(directory), numbers(wanted)
  assert {split for split, _, _ in expected} >= {
    'train',
    'eval_train',
    'eval_test_held_out',
  }
  assert found.keys() == expected.keys()
  np.testing.assert_allclose(
    list(found.values()),
    [expected[key] for key in found],
    rtol=1e-5,
    atol=1e-7,
  )
