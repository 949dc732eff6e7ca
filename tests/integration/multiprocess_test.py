# SPDX-License-Identifier: Apache-2.0
"""Two real processes: one run, one checkpoint, one end."""

# bazel: size=large
from __future__ import annotations

import signal
import time

import numpy as np
import pytest

from tests.integration import binary

STEPS = 40
MESH = '--set=ICI_MESH_SHAPE=[1,4,1]'


@pytest.fixture(scope='module')
def single(tmp_path_factory):
  """The losses of one process with all the devices."""
  directory = tmp_path_factory.mktemp('single')
  ended = binary.run(
    'TinySpmd', directory, MESH, '--set=NUM_STEPS=15', devices=4
  )
  assert ended.returncode == 0, ended.stderr
  return binary.losses(directory)


def test_sigterm_of_one_stops_both_and_one_process_goes_on(tmp_path, single):
  """All stop at one step; the checkpoint is read by one process alone."""
  words = [MESH, '--set=BATCH_SIZE=4', '--set=SECONDS=0.1']
  processes = binary.start_processes(
    'TinySpmd', tmp_path, *words, f'--set=NUM_STEPS={10**6}', count=2, devices=2
  )
  _wait_for_losses(tmp_path, 3)
  processes[1].send_signal(signal.SIGTERM)
  ended = [p.wait(binary.TIMEOUT_SECS) for p in processes]
  assert [p.returncode for p in ended] == [75, 75], ended
  newest = binary.checkpoint_names(tmp_path)[-1]
  stopped_at = int(newest.removeprefix('checkpoint_'))
  inputs = tmp_path / 'checkpoints' / newest / 'train_input'
  assert len(list(inputs.iterdir())) == 2
  ended = binary.run(
    'TinySpmd',
    tmp_path,
    MESH,
    f'--set=NUM_STEPS={stopped_at + 3}',
    devices=4,
  )
  assert ended.returncode == 0, ended.stderr
  found = binary.losses(tmp_path)
  assert sorted(found) == list(range(stopped_at + 3))
  common = sorted(found.keys() & single.keys())
  np.testing.assert_allclose(
    [found[s] for s in common], [single[s] for s in common], rtol=1e-5
  )


def test_the_failure_of_one_ends_both(tmp_path):
  """Once they are connected; who still waits for that gives up in a minute."""
  words = [MESH, '--set=BATCH_SIZE=4', '--set=train_input.fails_at=10']
  processes = binary.start_processes(
    'TinyBroken', tmp_path, *words, count=2, devices=2
  )
  ended = [p.wait(binary.TIMEOUT_SECS) for p in processes]
  assert all(p.returncode for p in ended)
  assert 'the disk with the data is gone' in ended[1].stderr


def _wait_for_losses(job_log_dir, count):
  deadline = time.monotonic() + binary.TIMEOUT_SECS
  while time.monotonic() < deadline:
    if (job_log_dir / 'metrics.jsonl').exists():
      if len(binary.losses(job_log_dir)) >= count:
        return
    time.sleep(0.05)
  raise TimeoutError('the run does not get anywhere')
