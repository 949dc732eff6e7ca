# SPDX-License-Identifier: Apache-2.0
"""Two real processes: one run, one checkpoint, one end."""

# bazel: size=large
from __future__ import annotations

import re
import signal

import numpy as np
import psutil
import pytest

from pax.files import tf_records
from pax.runner import peer_connections
from tests.integration import binary
from tests.testing import nightly, polling

STEPS = 40
MESH = '--set=ICI_MESH_SHAPE=[1,4,1]'


@pytest.fixture(scope='module')
def single(tmp_path_factory):
  """What one process with all the devices wrote."""
  directory = tmp_path_factory.mktemp('single')
  ended = binary.run(
    'TinySpmd', directory, MESH, '--set=NUM_STEPS=15', devices=4
  )
  assert ended.returncode == 0, ended.stderr
  return directory


def test_sigterm_of_one_stops_both_and_one_process_goes_on(tmp_path, single):
  """All stop at one step; the checkpoint is read by one process alone."""
  words = [MESH, '--set=BATCH_SIZE=4', '--set=SECONDS=0.1']
  processes = binary.start_processes(
    'TinySpmd', tmp_path, *words, f'--set=NUM_STEPS={10**6}', count=2, devices=2
  )
  binary.wait_for_losses(tmp_path, 3)
  processes[1].send_signal(signal.SIGTERM)
  ended = binary.wait(processes)
  assert [p.returncode for p in ended] == [75, 75], ended
  newest = binary.checkpoint_names(tmp_path)[-1]
  stopped_at = int(newest.removeprefix('checkpoint_'))
  inputs = tmp_path / 'checkpoints' / newest / 'metadata' / 'train_input'
  assert len(list(inputs.iterdir())) == 2
  ended = binary.run(
    'TinySpmd',
    tmp_path,
    MESH,
    f'--set=NUM_STEPS={stopped_at + 3}',
    devices=4,
  )
  assert ended.returncode == 0, ended.stderr
  found, wanted = binary.losses(tmp_path), binary.losses(single)
  assert sorted(found) == list(range(stopped_at + 3))
  common = sorted(found.keys() & wanted.keys())
  np.testing.assert_allclose(
    [found[s] for s in common], [wanted[s] for s in common], rtol=1e-5
  )


def test_two_processes_evaluate_and_decode_what_one_trained(tmp_path, single):
  processes = binary.start_processes(
    'TinySpmd',
    tmp_path,
    MESH,
    '--set=BATCH_SIZE=4',
    '--set=NUM_STEPS=15',
    '--set=FEWER_ON_LAST=1',
    '--mode=decode',
    '--eval_during_decode',
    f'--restore_checkpoint_dir={single}',
    count=2,
    devices=2,
  )
  ended = binary.wait(processes)
  assert [p.returncode for p in ended] == [0, 0], ended
  found = [r for r in binary.records(tmp_path) if 'Metrics/rows' in r]
  # Three batches of eight rows, of which the last weighs nothing; in the third,
  # those of process 1 are padding.
  mean = (7 + 7 + 4) / 3
  assert [(r['step'], r['Metrics/rows']) for r in found] == [(15, mean)]
  files = sorted(p.name for p in tmp_path.rglob('*_out_15_*.jsonl'))
  assert files == ['decoder_out_15_shard_0.jsonl', 'eval_out_15_shard_0.jsonl']
  lines = [
    len(p.read_text().splitlines())
    for p in tmp_path.rglob('*.jsonl')
    if '_out_15_' in p.name
  ]
  assert sorted(lines) == [16, 24]


def test_two_processes_infer(tmp_path, single):
  words = ['--mode=infer', MESH]
  restored = f'--set=task.infer_writer.restore_checkpoint_dir={single}'
  found = []
  for count in (1, 2):
    directory = tmp_path / str(count)
    processes = binary.start_processes(
      'TinySpmd',
      directory,
      *words,
      restored,
      f'--set=BATCH_SIZE={8 // count}',
      count=count,
      devices=4 // count,
    )
    ended = binary.wait(processes)
    assert [p.returncode for p in ended] == [0] * count, ended
    files = sorted((directory / 'output' / 'prompts').glob('*tfrecord*'))
    records = []
    for file in files:
      with file.open('rb') as f:
        records += tf_records.read(f)
    # The guess is the last four bytes of a record.
    found.append([np.frombuffer(r[-4:], '<f4')[0] for r in records])
  assert len(found[0]) == 16
  np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_sigterm_of_one_ends_the_evaluation_of_both(tmp_path):
  """The pass would take hours."""
  processes = binary.start_processes(
    'TinyLongEval',
    tmp_path,
    MESH,
    '--set=BATCH_SIZE=4',
    '--eval_on_test',
    f'--set=SENT={tmp_path / "sent"}',
    count=2,
    devices=2,
  )
  ended = binary.wait(processes)
  assert [p.returncode for p in ended] == [75, 75], ended
  assert binary.checkpoint_names(tmp_path)[-1] == 'checkpoint_00000010'


def test_the_failure_of_one_ends_both(tmp_path):
  """Once they are connected; who still waits for that gives up in a minute."""
  words = [MESH, '--set=BATCH_SIZE=4', '--set=train_input.fails_at=10']
  processes = binary.start_processes(
    'TinyBroken', tmp_path, *words, count=2, devices=2
  )
  ended = binary.wait(processes)
  assert [p.returncode for p in ended] == [1, 1], ended
  assert 'the disk with the data is gone' in ended[1].stderr
  message = (
    r'pax: error: process 1 of 2 \(host .+\) ended with exit code 1; this'
    r' .* Its error: .*the disk with the data is gone'
  )
  assert re.search(message, ended[0].stderr), ended[0].stderr


def _ended_pair(directories, words):
  """Runs two processes of one job, each with a directory and a word of its own.

  Returns both when they have ended, with code 1.
  """
  port = binary.free_port()
  processes = [
    binary.start_processes(
      'TinySpmd',
      directory,
      MESH,
      word,
      count=2,
      devices=2,
      indices=(index,),
      port=port,
    )[0]
    for index, (directory, word) in enumerate(
      zip(directories, words, strict=True)
    )
  ]
  ended = binary.wait(processes)
  assert [p.returncode for p in ended] == [1, 1], ended
  return ended


def test_processes_with_different_directories_do_not_train(tmp_path):
  """As those on disks of their own: a checkpoint would lack a part."""
  directories = [tmp_path / str(index) for index in range(2)]
  ended = _ended_pair(directories, ['--job_dir_wait_secs=1'] * 2)
  message = f'--job_log_dir of process 1 of 2, {directories[1]} (host '
  # Process 0, which serves the others, may end before process 1 can read it.
  assert message in ended[0].stderr, ended


def test_processes_with_different_constants_do_not_train(tmp_path):
  ended = _ended_pair([tmp_path] * 2, ['--set=HIDDEN=16', '--set=HIDDEN=20'])
  message = 'all processes must compile the same train_step, but that of proc'
  assert message in ended[0].stderr, ended
  assert not (tmp_path / 'checkpoints').exists()


@pytest.mark.parametrize('killed', [0, *nightly.cases(1)])
def test_the_death_of_one_ends_the_other(tmp_path, killed):
  words = [MESH, '--set=BATCH_SIZE=4', f'--set=NUM_STEPS={10**6}']
  processes = binary.start_processes(
    'TinySpmd', tmp_path, *words, count=2, devices=2
  )
  binary.wait_for_losses(tmp_path, 3)
  processes[killed].send_signal(signal.SIGKILL)
  _assert_lost(processes[1 - killed], f'process {killed} of 2')
  processes[killed].wait()


def test_a_process_that_dies_at_the_start_ends_the_other(tmp_path):
  """A third has not joined yet."""
  port = binary.free_port()
  words = [MESH, '--set=BATCH_SIZE=4']
  first, second = binary.start_processes(
    *('TinySpmd', tmp_path, *words),
    count=3,
    devices=1,
    indices=(0, 1),
    port=port,
  )
  polling.wait_until(lambda: _is_watched(second.pid, port))
  second.send_signal(signal.SIGKILL)
  _assert_lost(first, 'process 1 of 3')
  second.wait()


@pytest.mark.parametrize('index', [0, *nightly.cases(1)])
def test_a_process_that_does_not_join_is_named(tmp_path, index):
  words = [MESH, '--initialization_timeout_secs=2']
  (started,) = binary.start_processes(
    'TinySpmd', tmp_path, *words, count=2, devices=2, indices=(index,)
  )
  ended = started.wait(binary.TIMEOUT_SECS)
  assert ended.returncode == 76, ended
  message = f'process {1 - index} of 2 did not join within 2 s'
  assert message in ended.stderr, ended.stderr


def _assert_lost(survivor, name):
  """It ends in time, with one message and no stack trace."""
  ended = survivor.wait(15)
  assert ended.returncode == 76, ended.stderr
  assert ended.stderr.count('pax: error: ') == 1, ended.stderr
  assert re.search(rf'{name} \(host .+\) is gone: ', ended.stderr), ended.stderr
  assert 'stack trace' not in ended.stderr
  assert 'Traceback' not in ended.stderr


def _is_watched(pid, port):
  """Whether the monitor of process 0 knows a process.

  A process connects to JAX, at `port`, once the monitor has answered it. It
  probes that port before, but closes what did not answer first.
  """
  found = psutil.Process(pid).net_connections('tcp')
  ports = {c.raddr.port for c in found if c.status == psutil.CONN_ESTABLISHED}
  monitor = peer_connections.ports(f'localhost:{port}')
  return port in ports and not ports.isdisjoint(monitor)


def test_a_signal_during_the_start_of_one_ends_both(tmp_path):
  processes = binary.start_processes(
    'TinySpmd', tmp_path, MESH, '--set=BATCH_SIZE=4', count=2, devices=2
  )
  binary.wait_for_file(tmp_path / 'config.json')
  processes[0].send_signal(signal.SIGHUP)
  ended = binary.wait(processes)
  assert [p.returncode for p in ended] == [75, 75], ended
  end = ': stopped before the first step; nothing was lost'
  assert f'pax: SIGHUP{end}' in ended[0].stderr
  assert f'pax: SIGHUP in process 0{end}' in ended[1].stderr


def test_a_signal_saves_while_the_input_of_all_stalls(tmp_path):
  """One alone has no common state (tests/faults)."""
  waits = tmp_path / 'waits'
  processes = binary.start_processes(
    'TinyHanging',
    tmp_path,
    MESH,
    '--set=BATCH_SIZE=4',
    f'--set=train_input.waits={waits}',
    count=2,
    devices=2,
  )
  binary.wait_for_file(waits)
  binary.wait_for_losses(tmp_path, 2)
  processes[0].send_signal(signal.SIGTERM)
  ended = binary.wait(processes)
  assert [p.returncode for p in ended] == [75, 75], ended
  # The signal may come before the last step whose batch exists.
  names = [f'checkpoint_{step:08d}' for step in (2, 3, 4)]
  assert binary.checkpoint_names(tmp_path)[-1] in names
