# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
"""Job directories that are damaged, full, deleted or used twice."""

from __future__ import annotations

import json
import shutil
import signal
import time

import pytest

from tests.integration import binary
from tests.testing import mounts

STEPS = '--set=NUM_STEPS=40'
# Every step is slow enough for a test to interfere, every other one is saved.
SLOW = (STEPS, '--set=SAVE_EVERY=2', '--set=SECONDS=0.05')


def _wait_for(path):
  deadline = time.monotonic() + binary.TIMEOUT_SECS
  while not path.exists():
    assert time.monotonic() < deadline, f'{path} does not appear'
    time.sleep(0.01)


def _message(completed):
  """The error of a run, which must be the last line of its output."""
  assert completed.returncode == 1, completed.stderr
  assert 'Traceback' not in completed.stderr
  lines = completed.stderr.strip().splitlines()
  assert [x for x in lines if 'pax: error: ' in x] == lines[-1:], lines
  return lines[-1]


@pytest.mark.nightly
def test_damaged_side_files_do_not_stop_a_run(tmp_path):
  assert binary.run('TinySpmd', tmp_path, '--set=NUM_STEPS=5').returncode == 0
  names = [
    'goodput.jsonl',
    'metrics.jsonl',
    'run.json',
    'train_state_provenance.txt',
  ]
  for name in names:
    with (tmp_path / name).open('ab') as file:
      file.write(b'\xff\n')
  (tmp_path / '_internal_artifacts').write_text('')
  shutil.rmtree(tmp_path / 'logs')
  (tmp_path / 'logs').write_text('')
  completed = binary.run('TinySpmd', tmp_path, '--set=NUM_STEPS=8')
  assert completed.returncode == 0, completed.stderr
  for name in [*names, 'logs']:
    warnings = [x for x in completed.stderr.splitlines() if f'{name}.dam' in x]
    assert len(warnings) == 1, completed.stderr
  assert sorted(binary.losses(tmp_path)) == list(range(8))
  assert len(json.loads((tmp_path / 'run.json').read_text())) == 1


@mounts.needs_root
def test_a_full_disk(tmp_path):
  job = tmp_path / 'job'
  # A checkpoint has 0.8 MB.
  words = ['--set=NUM_STEPS=8', '--set=SAVE_EVERY=1', '--set=HIDDEN=20000']
  with mounts.tmpfs(job, '2m'):
    completed = binary.run('TinySpmd', job, *words)
    message = _message(completed)
    # The progress, one warning, the error.
    assert len(completed.stderr.splitlines()) <= 5, completed.stderr
    assert f'cannot write {job}/checkpoints/' in message
    assert 'No space left on device; the checkpoints before it' in message
    complete = binary.checkpoint_names(job)
    assert 'checkpoint_00000000' in complete
    mounts.resize(job, '40m')
    completed = binary.run('TinySpmd', job, *words)
    assert completed.returncode == 0, completed.stderr
    assert 'checkpoint_00000008' in binary.checkpoint_names(job)


def test_a_deleted_directory_is_not_created_anew(tmp_path):
  job, emergency = tmp_path / 'job', tmp_path / 'emergency'
  straight = tmp_path / 'straight'
  assert binary.run('TinySpmd', straight, STEPS).returncode == 0
  flags = [f'--emergency_dir={emergency}', '--job_dir_wait_secs=0']
  process = binary.start('TinySpmd', job, *SLOW, *flags)
  _wait_for(job / 'checkpoints' / 'checkpoint_00000004')
  job.rename(tmp_path / 'moved')
  message = _message(process.wait())
  assert f'--job_log_dir={job} was moved to {tmp_path / "moved"}' in message
  assert not job.exists()
  (name,) = binary.checkpoint_names(emergency)
  assert f'{emergency}/checkpoints/{name}: continue with' in message
  # Started again by mistake, it does not train anew.
  again = _message(binary.run('TinySpmd', job, *SLOW, *flags))
  assert f'--emergency_dir={emergency} has a checkpoint' in again
  completed = binary.run('TinySpmd', emergency, STEPS)
  assert completed.returncode == 0, completed.stderr
  losses, expected = binary.loss_bits(emergency), binary.loss_bits(straight)
  first = int(name.removeprefix('checkpoint_'))
  assert losses == {s: x for s, x in expected.items() if s >= first}


def test_without_a_lock_file_a_second_run_is_refused(tmp_path):
  process = binary.start('TinySpmd', tmp_path, *SLOW, '--set=SECONDS=60')
  _wait_for(tmp_path / 'config.json')
  (tmp_path / '.lock').unlink()
  message = _message(binary.run('TinySpmd', tmp_path, *SLOW))
  assert 'another process trains in' in message
  process.send_signal(signal.SIGKILL)
  process.wait()
