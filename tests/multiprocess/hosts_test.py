# SPDX-License-Identifier: Apache-2.0
"""One run as several hosts and slices: the same numbers, the same files."""

# bazel: size=large
from __future__ import annotations

import numpy as np
import pytest

from tests.integration import binary

# Everything that the records of two runs have in common.
TIMES = {'wall_time', 'train_steps_per_sec', 'eval_steps_per_sec'}
EVAL = '--eval_on_test'
SAVES = ('--set=SAVE_EVERY=5', '--set=EVAL_EVERY=5', EVAL)
SLICES = (
  '--set=ICI_MESH_SHAPE=[1,2,1]',
  '--set=task.model.dcn_mesh_shape=[1,2,1]',
)
MESH = '--set=ICI_MESH_SHAPE=[1,4,1]'


@pytest.fixture(scope='module')
def single(tmp_path_factory):
  """What one process with all four devices wrote."""
  directory = tmp_path_factory.mktemp('single')
  ended = binary.run('TinySpmd', directory, MESH, *SAVES, devices=4)
  assert ended.returncode == 0, ended.stderr
  return directory


def train(directory, *words, count, steps=20):
  """Runs as `count` processes, which have four devices and eight rows."""
  processes = binary.start_processes(
    'TinySpmd',
    directory,
    *words,
    *SAVES,
    f'--set=BATCH_SIZE={8 // count}',
    f'--set=NUM_STEPS={steps}',
    count=count,
    devices=4 // count,
  )
  ended = [process.wait(binary.TIMEOUT_SECS) for process in processes]
  assert [e.returncode for e in ended] == [0] * count, ended


def numbers(directory):
  """{(split, step, name): value} of losses and metrics."""
  return {
    (record['split'], record['step'], name): value
    for record in binary.records(directory)
    for name, value in record.items()
    if name == 'loss' or name.startswith('Metrics/')
  }


def assert_same(directory, wanted, rtol=1e-5):
  found = numbers(directory)
  assert found.keys() == numbers(wanted).keys()
  np.testing.assert_allclose(
    list(found.values()),
    [numbers(wanted)[key] for key in found],
    rtol=rtol,
    atol=1e-7,
  )


def test_two_slices_of_two_hosts_then_two_hosts_then_one(tmp_path, single):
  """Who saved a checkpoint does not matter to who goes on from it."""
  train(tmp_path, *SLICES, count=4, steps=10)
  train(tmp_path, MESH, count=2, steps=15)
  names = binary.checkpoint_names(tmp_path)
  assert names[-1] == 'checkpoint_00000015'
  # Each host has its place in the data.
  inputs = [
    len(list((tmp_path / 'checkpoints' / name / 'train_input').iterdir()))
    for name in ('checkpoint_00000010', 'checkpoint_00000015')
  ]
  assert inputs == [4, 2]
  ended = binary.run('TinySpmd', tmp_path, MESH, *SAVES, devices=4)
  assert ended.returncode == 0, ended.stderr
  assert_same(tmp_path, single)
