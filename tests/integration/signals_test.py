# SPDX-License-Identifier: Apache-2.0
"""Signals: what is saved, and how the run goes on."""

# bazel: size=large
from __future__ import annotations

import json
import random
import signal
import time

import pytest

from pax import stop_signals
from tests.integration import binary
from tests.testing import nightly

EXIT_PREEMPTED = 75  # As documented.


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  """The losses of a run that nothing stops."""
  directory = tmp_path_factory.mktemp('straight')
  ended = binary.run('TinySpmd', directory, '--set=NUM_STEPS=40')
  assert ended.returncode == 0, ended.stderr
  return binary.loss_bits(directory)


@pytest.mark.parametrize(
  'number',
  [signal.SIGTERM, *nightly.cases(signal.SIGINT, signal.SIGHUP)],
)
def test_a_signal_saves_and_the_run_goes_on(tmp_path, straight, number):
  words = [
    '--set=NUM_STEPS=40',
    '--set=SECONDS=0.05',
    f'--set=train_input.number={int(number)}',
  ]
  stopped = binary.run('TinyStopped', tmp_path, *words)
  assert stopped.returncode == EXIT_PREEMPTED, stopped.stderr
  name = stop_signals.name_of(number)
  assert f'pax: {name}: finishing the step, then saving' in stopped.stderr
  assert 'Traceback' not in stopped.stderr
  newest = int(
    binary.checkpoint_names(tmp_path)[-1].removeprefix('checkpoint_')
  )
  assert 1 <= newest <= 6
  assert sorted(binary.losses(tmp_path)) == list(range(newest))
  words += ['--set=SECONDS=0', '--set=train_input.signal_at=0']
  ended = binary.run('TinyStopped', tmp_path, *words)
  assert ended.returncode == 0, ended.stderr
  assert binary.loss_bits(tmp_path) == straight
  starts = json.loads((tmp_path / 'run.json').read_text())
  assert [len(s['argv']) > 3 for s in starts] == [True, True]
  assert starts[0]['experiment'].endswith('.TinyStopped')
  log = (tmp_path / 'logs' / 'train_0.log').read_text()
  lines = [x for x in ended.stderr.splitlines() if x.startswith('step ')]
  assert lines and all(line in log for line in lines)
  checkpoint = tmp_path / 'checkpoints' / f'checkpoint_{newest:08d}'
  assert lines[0] == f'step {newest}: restored from {checkpoint}'
  last = binary.checkpoint_names(tmp_path)[-1]
  assert f': saved in {checkpoint.with_name(last)}\n' in ended.stderr


def test_a_signal_saves_and_training_continues(tmp_path, straight):
  ended = binary.run(
    'TinyStopped',
    tmp_path,
    '--noexit_after_ondemand_checkpoint',
    '--set=NUM_STEPS=40',
    '--set=SAVE_EVERY=1000',
    '--set=SECONDS=0.02',
    '--set=task.train.save_max_to_keep=4',
    f'--set=train_input.number={int(signal.SIGTERM)}',
  )
  assert ended.returncode == 0, ended.stderr
  message = 'pax: SIGTERM: saving before the next step; training continues'
  assert ended.stderr.count(message) == 1
  first, ondemand, last = binary.checkpoint_names(tmp_path)
  assert (first, last) == ('checkpoint_00000000', 'checkpoint_00000040')
  assert first < ondemand < last
  assert binary.loss_bits(tmp_path) == straight


def test_kill_at_any_moment(tmp_path, straight):
  """Three kills while every step is saved; then it goes on to the end."""
  words = ['--set=NUM_STEPS=40', '--set=SAVE_EVERY=1', '--set=SECONDS=0.02']
  words += ['--set=task.train.save_max_to_keep=3']
  chance = random.Random(0)
  newest = 0
  for _ in range(3):
    process = binary.start('TinySpmd', tmp_path, *words)
    _wait_for_checkpoint_after(tmp_path, newest)
    time.sleep(chance.uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    process.wait()
    newest = _newest(tmp_path)
  ended = binary.run('TinySpmd', tmp_path, *words)
  assert ended.returncode == 0, ended.stderr
  assert binary.loss_bits(tmp_path) == straight
  left = binary.checkpoint_names(tmp_path)
  assert not [name for name in left if name.startswith('tmp_')]
  assert _newest(tmp_path) == 40


def _newest(job_log_dir):
  directory = job_log_dir / 'checkpoints'
  if not directory.exists():
    return -1
  complete = [p.name for p in directory.glob('checkpoint_*')]
  return max((int(n.removeprefix('checkpoint_')) for n in complete), default=-1)


def _wait_for_checkpoint_after(job_log_dir, step):
  deadline = time.monotonic() + binary.TIMEOUT_SECS
  while _newest(job_log_dir) <= step:
    assert time.monotonic() < deadline, 'no new checkpoint'
    time.sleep(0.01)


def test_a_signal_before_the_first_step_is_obeyed_at_once(tmp_path):
  process = binary.start('TinySpmd', tmp_path, '--set=SECONDS=60')
  binary.wait_for_file(tmp_path / 'config.json')
  process.send_signal(signal.SIGTERM)
  ended = process.wait(timeout=30)
  assert ended.returncode == EXIT_PREEMPTED, ended.stderr
  message = 'pax: SIGTERM: stopped before the first step; nothing was lost\n'
  assert ended.stderr == message


def test_a_signal_ends_the_wait_for_a_batch_that_never_comes(tmp_path):
  waits = tmp_path / 'waits'
  process = binary.start(
    'TinyHanging', tmp_path, f'--set=train_input.waits={waits}'
  )
  binary.wait_for_file(waits)
  binary.wait_for_losses(tmp_path, 2)
  process.send_signal(signal.SIGTERM)
  ended = process.wait(timeout=30)
  assert ended.returncode == EXIT_PREEMPTED, ended.stderr
  assert ended.stderr.count('pax:') == 1
  # The signal may come before the last step whose batch exists.
  assert 2 <= _newest(tmp_path) <= 4


def test_a_repeated_signal_stops_at_once(tmp_path):
  process = binary.start('TinyStuck', tmp_path)
  binary.wait_for_file(tmp_path / 'stuck')
  process.send_signal(signal.SIGTERM)
  time.sleep(stop_signals.REPEAT_SECS + 0.5)
  process.send_signal(signal.SIGTERM)
  ended = process.wait(timeout=30)
  assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
  message = 'stopped at once; steps after the last checkpoint are lost'
  assert f'pax: SIGTERM: {message}' in ended.stderr
