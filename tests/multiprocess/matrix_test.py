# SPDX-License-Identifier: Apache-2.0
"""Every way to divide four devices among processes trains the same model."""

# bazel: size=large
# bazel: tags=nightly
# bazel: shards=3
from __future__ import annotations

import re
import signal
import time

import pytest

from tests.integration import binary
from tests.multiprocess import many

# ICI and DCN meshes over (replica, data, mdl).
MESHES = {
  'data': ([1, 4, 1], None),
  'replica': ([4, 1, 1], None),
  'model': ([1, 1, 4], None),
  'data_and_model': ([1, 2, 2], None),
  'slices_of_data': ([1, 2, 1], [2, 1, 1]),
  'slices_of_model': ([1, 1, 2], [1, 2, 1]),
  'four_slices': ([1, 1, 1], [1, 4, 1]),
}


@pytest.fixture(scope='module')
def single(tmp_path_factory):
  """What one process with all four devices wrote."""
  return many.single(tmp_path_factory.mktemp('single'))


@pytest.mark.parametrize('count', [2, 4])
@pytest.mark.parametrize('name', MESHES)
def test_meshes(tmp_path, single, name, count):
  ici, dcn = MESHES[name]
  words = [f'--set=ICI_MESH_SHAPE={ici}'.replace(' ', '')]
  if dcn:
    words.append(f'--set=task.model.dcn_mesh_shape={dcn}'.replace(' ', ''))
  many.train(tmp_path, *words, count=count)
  many.assert_same(tmp_path, single)


def test_replicas(tmp_path):
  """With pmap semantics, where every replica draws noise of its own."""
  words = ['--set=NOISE=0.0']
  single = tmp_path / 'single'
  many.train(single, *words, count=1, exp='TinyPmap')
  many.train(tmp_path / 'two', *words, count=2, exp='TinyPmap')
  many.assert_same(tmp_path / 'two', single)


@pytest.mark.parametrize('count', [2, 4])
def test_what_goes_on_is_what_was_never_stopped(tmp_path, count):
  """Bit for bit, with as many processes."""
  words = ['--set=ICI_MESH_SHAPE=[1,4,1]']
  straight, stopped = tmp_path / 'straight', tmp_path / 'stopped'
  many.train(straight, *words, count=count)
  for steps in (10, 20):
    many.train(stopped, *words, count=count, steps=steps)
  assert binary.loss_bits(stopped) == binary.loss_bits(straight)
  assert many.numbers(stopped) == many.numbers(straight)


def test_one_replica_restores_for_all(tmp_path):
  """Bit for bit what all processes restore, with half of the readers."""
  words = ['--set=ICI_MESH_SHAPE=[2,2,1]']
  straight, stopped = tmp_path / 'straight', tmp_path / 'stopped'
  many.train(straight, *words, count=4)
  many.train(stopped, *words, count=4, steps=10)
  words.append('--single_replica_restore')
  many.train(stopped, *words, count=4)
  log = (stopped / 'logs' / 'train_3.log').read_text()
  assert 'Processes (0, 1) have read the checkpoint' in log
  assert binary.loss_bits(stopped) == binary.loss_bits(straight)


@pytest.mark.parametrize('killed', [0, 1])
def test_without_a_launcher_who_is_left_ends_too(tmp_path, killed):
  """Within a minute, for that is how long a process may be silent."""
  processes = binary.start_processes(
    'TinySpmd',
    tmp_path,
    many.MESH,
    '--set=BATCH_SIZE=4',
    f'--set=NUM_STEPS={10**6}',
    count=2,
    devices=2,
  )
  wait_for_losses(tmp_path)
  processes[killed].send_signal(signal.SIGKILL)
  ended = binary.wait(processes)
  left = ended[1 - killed]
  assert left.returncode
  # Pax, the coordination service or a collective notices the loss first.
  lost = (
    f'process {killed} of 2 .* is gone|Connection reset by peer'
    '|most likely indicates that another task died'
  )
  assert re.search(lost, left.stderr), left.stderr


def wait_for_losses(directory):
  deadline = time.monotonic() + binary.TIMEOUT_SECS
  while not (directory / 'metrics.jsonl').exists():
    assert time.monotonic() < deadline
    time.sleep(0.1)


def test_an_output_of_four_processes_is_that_of_one(tmp_path, single):
  """Decoding: each record once."""
  words = ('--mode=decode_once', f'--restore_checkpoint_dir={single}')
  many.train(tmp_path / 'four', many.MESH, *words, count=4)
  many.train(tmp_path / 'one', many.MESH, *words, count=1)
  four, one = (
    sorted(
      line
      for file in (tmp_path / name).rglob('decoder_out_20_*.jsonl')
      for line in file.read_text().splitlines()
    )
    for name in ('four', 'one')
  )
  assert len(four) == len(one) > 0
