# SPDX-License-Identifier: Apache-2.0
# bazel: size=enormous
# bazel: tags=nightly
"""Job directories that are full, read-only, slow, gone or damaged.

The file systems are real, small ones in memory and bind mounts: mounting them
needs root.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import signal

import pytest

from tests.faults import harness
from tests.testing import mounts

LAYOUTS = {
  'spmd': ('TinySpmd', ()),
  'pmap_one_file': ('TinyPmap', ()),
  'pmap_tensorstore': ('TinyPmap', ('--pmap_use_tensorstore',)),
}
STEPS = 30
LONG = f'--set=NUM_STEPS={STEPS}'
# Steps that are slow enough for a test to interfere.
SLOW = (LONG, '--set=SAVE_EVERY=2', '--set=SECONDS=0.05')
# A checkpoint of 0.8 MB, on a disk of 2 MB.
WIDE = ('--set=NUM_STEPS=8', '--set=SAVE_EVERY=1', '--set=HIDDEN=20000')
# Lines of a run that fails: progress, evaluations, a warning, the error.
MAX_LINES = 12


def _job(directory, layout='spmd', num_processes=1):
  exp, flags = LAYOUTS[layout]
  return harness.Job(
    directory, exp=exp, flags=flags, num_processes=num_processes
  )


def _message(completed):
  """Returns the error of a run, the last line of its output."""
  assert completed.returncode == harness.ERROR, completed
  lines = completed.stderr.strip().splitlines()
  assert 'Traceback' not in completed.stderr, completed.stderr
  assert 'Logging error' not in completed.stderr, completed.stderr
  assert len(lines) <= MAX_LINES, completed.stderr
  assert [x for x in lines if 'pax: error: ' in x] == lines[-1:], lines
  return lines[-1]


def _wait_for_step(job, step, life):
  harness.wait_until(lambda: job.newest_step() >= step, life)


@mounts.needs_root
@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('has_emergency_dir', [False, True])
def test_full_disk(tmp_path, report, layout, has_emergency_dir):
  job = _job(tmp_path / 'job', layout)
  other = _job(tmp_path / 'emergency', layout)
  flags = [*WIDE, '--eval_on_test', '--decode_during_train']
  if has_emergency_dir:
    flags.append(f'--emergency_dir={other.directory}')
  with mounts.tmpfs(job.directory, '2m'):
    message = _message(job.run(*flags))
    assert f'cannot write {job.directory}/checkpoints/checkpoint_' in message
    assert 'No space left on device' in message
    assert 'the checkpoints before it are untouched' in message
    assert job.checkpoints()
    mounts.resize(job.directory, '40m')
    if has_emergency_dir:
      assert str(other.directory) in message
      (step,) = other.checkpoints()
      assert step > job.newest_step()
      other.finish(*WIDE)
    else:
      job.finish(*WIDE)
      assert job.newest_step() == 8
  report(full_disks=1)


@mounts.needs_root
@pytest.mark.parametrize('layout', LAYOUTS)
def test_disk_that_becomes_read_only(tmp_path, report, layout):
  job = _job(tmp_path / 'job', layout)
  with mounts.tmpfs(job.directory, '20m'):
    life = job.start(*SLOW, '--eval_on_test')
    _wait_for_step(job, 4, life)
    mounts.make_read_only(job.directory)
    (completed,) = life.wait()
    message = _message(completed)
    assert 'Read-only file system' in message
    # A start on the read-only disk is refused before training.
    again = _message(job.run(*SLOW))
    assert f'cannot write to --job_log_dir={job.directory}' in again
    mounts.unmount(job.directory)
    job.finish(LONG)
    harness.check_losses(job, STEPS)
  report(read_only_disks=1)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_slow_disk(tmp_path, report, layout):
  """A signal during a slow save: the checkpoint is completed all the same."""
  job = _job(tmp_path / 'job', layout)
  fault = harness.Fault(at=1, count=0, action='slow')
  flags = (LONG, '--set=SAVE_EVERY=5')
  life = job.start(*flags, fault=fault)
  harness.wait_until(
    lambda: any((job.directory / 'checkpoints').glob('tmp_*')), life
  )
  life.signal(signal.SIGTERM)
  (completed,) = life.wait()
  assert completed.returncode == harness.PREEMPTED, completed
  assert job.checkpoints()
  assert job.run(*flags, fault=fault).returncode == harness.DONE
  assert not harness.leftovers(job.directory)
  report(slow_disks=1, losses=harness.check_losses(job, STEPS))


def _delete(path: pathlib.Path) -> str:
  path.rename(path.with_name('trash'))
  shutil.rmtree(path.with_name('trash'))
  return 'was deleted'


def _move(path: pathlib.Path) -> str:
  path.rename(path.with_name('elsewhere'))
  return f'was moved to {path.with_name("elsewhere")}'


def _replace(path: pathlib.Path) -> str:
  message = _move(path)
  path.mkdir()
  return f'{message}; another directory is in its place'


CHANGES = {'delete': _delete, 'move': _move, 'replace': _replace}


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize(
  ('layout', 'num_processes'),
  [*((layout, 1) for layout in LAYOUTS), ('spmd', 2)],
)
def test_directory_that_is_gone(
  tmp_path, report, layout, num_processes, change
):
  job = _job(tmp_path / 'job', layout, num_processes)
  other = _job(tmp_path / 'emergency', layout, num_processes)
  flags = [*SLOW, f'--emergency_dir={other.directory}', '--job_dir_wait_secs=1']
  life = job.start(*flags)
  _wait_for_step(job, 4, life)
  message = CHANGES[change](job.directory)
  completed = life.wait()
  messages = [_message(process) for process in completed]
  # Of two processes one may meet the end of the other one.
  of_peer = [x for x in messages if re.search(r'process \d of 2 \(host ', x)]
  assert len(of_peer) < num_processes
  assert all('ended with exit code 1' in x for x in of_peer)
  for text in (x for x in messages if x not in of_peer):
    assert message in text
    assert str(other.directory) in text
  if change == 'replace':
    assert not any(job.directory.iterdir())
  else:
    assert not job.directory.exists()
  (step,) = other.checkpoints()
  other.finish(LONG)
  _check_tail(other, step)
  report(lost_directories=1)


def _check_tail(job, first_step):
  """Checks the losses of a job that began at a step, bit by bit."""
  expected = harness.reference_losses(STEPS, job.exp, job.num_processes)
  written = dict(harness.loss_bits(job.directory))
  assert written == {s: x for s, x in expected.items() if s >= first_step}


@mounts.needs_root
def test_directory_that_is_unmounted(tmp_path, report):
  real, job = tmp_path / 'real', _job(tmp_path / 'job')
  real.mkdir()
  mounts.bind(real, job.directory)
  life = job.start(*SLOW, '--job_dir_wait_secs=1')
  _wait_for_step(job, 4, life)
  mounts.unmount(job.directory)
  (completed,) = life.wait()
  message = _message(completed)
  assert 'another directory is in its place' in message
  assert 'steps after its last checkpoint are lost' in message
  # Nothing was written below the mount point.
  assert not any(job.directory.iterdir())
  mounts.bind(real, job.directory)
  try:
    job.finish(LONG)
    harness.check_losses(job, STEPS)
  finally:
    mounts.unmount(job.directory)
  report(unmounted_directories=1)


@mounts.needs_root
def test_directory_that_is_mounted_again_in_time(tmp_path, report):
  real, job = tmp_path / 'real', _job(tmp_path / 'job')
  real.mkdir()
  mounts.bind(real, job.directory)
  life = job.start(*SLOW, '--job_dir_wait_secs=600')
  _wait_for_step(job, 4, life)
  mounts.unmount(job.directory)
  log = real / 'logs' / 'train_0.log'
  harness.wait_until(lambda: 'waiting up to 600 s' in log.read_text(), life)
  mounts.bind(real, job.directory)
  try:
    (completed,) = life.wait()
    assert completed.returncode == harness.DONE, completed.stderr
    assert harness.check_losses(job, STEPS) == STEPS
  finally:
    mounts.unmount(job.directory)
  report(remounted_directories=1)


def test_signal_while_waiting_for_the_directory(tmp_path):
  job, other = _job(tmp_path / 'job'), _job(tmp_path / 'emergency')
  life = job.start(
    *SLOW, '--job_dir_wait_secs=86400', f'--emergency_dir={other.directory}'
  )
  _wait_for_step(job, 4, life)
  job.directory.rename(tmp_path / 'moved')
  log = tmp_path / 'moved' / 'logs' / 'train_0.log'
  harness.wait_until(lambda: 'waiting up to' in log.read_text(), life)
  life.signal(signal.SIGTERM)
  (completed,) = life.wait()
  assert str(other.directory) in _message(completed)
  assert len(other.checkpoints()) == 1


@pytest.mark.parametrize('mode', ['eval', 'decode'])
def test_directory_of_a_following_job_is_gone(tmp_path, mode):
  job = _job(tmp_path / 'job')
  job.finish('--set=NUM_STEPS=4')
  life = job.start(f'--mode={mode}', LONG, '--job_dir_wait_secs=0')
  folder = 'eval_out' if mode == 'eval' else 'decoder_out'
  harness.wait_until(
    lambda: any(job.directory.glob(f'{folder}/*/*.jsonl')), life
  )
  message = _move(job.directory)
  (completed,) = life.wait()
  assert message in _message(completed)
  assert not job.directory.exists()


SIDE_FILES = (
  'goodput.jsonl',
  'metrics.jsonl',
  'run.json',
  'train_state_provenance.txt',
  '.lock',
  'vocabularies.json',
  'pinned_checkpoints.json',
  '_internal_artifacts/_training_end.json',
  '_internal_artifacts',
  'logs',
  'summaries',
  'config.json',
)
DAMAGES = {
  'not UTF-8': b'\xff\xfe\n',
  'empty': b'',
  'NUL bytes': bytes(4096),
  'a number': b'17\n',
  'cut': b'{"step": [1, ',
}


@pytest.mark.parametrize('damage', [*DAMAGES, 'a directory'])
def test_all_side_files_are_damaged(tmp_path, report, damage):
  job = _job(tmp_path / 'job')
  job.finish('--set=NUM_STEPS=4')
  for name in SIDE_FILES:
    path = job.directory / name
    if path.is_dir():
      shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if damage == 'a directory' or not path.parent.is_dir():
      path.mkdir(parents=True, exist_ok=True)
    else:
      path.write_bytes(DAMAGES[damage])
  completed = job.run('--set=NUM_STEPS=6', '--eval_on_test')
  assert completed.returncode == harness.DONE, completed.stderr
  assert 'Traceback' not in completed.stderr, completed.stderr
  assert sorted(harness.records(job.directory), key=lambda r: r['step'])
  report(damaged_files=len(SIDE_FILES))
