# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The job directory: locked by one run, checked, with a log."""

from __future__ import annotations

import errno
import fcntl
import json
import logging as std_logging
import os
import pathlib
import shutil
import time
import uuid

import pytest
from absl import logging

from pax.files import storage, working_copy
from pax.runner import job_dir, job_lock, job_log, lease
from tests.testing import coordination_store


def test_makes_the_directory_and_logs_into_it(tmp_path, caplog):
  path = str(tmp_path / 'a' / 'b')
  caplog.set_level('INFO', logger='absl')
  with job_dir.open_job_dir(path, 3):
    logging.info('hello')
  logging.info('too late')
  text = job_log.log_file(path, 3).read_text()
  assert 'hello' in text and 'too late' not in text


def test_logs_the_traceback_of_what_leaves_it(tmp_path):
  with pytest.raises(ZeroDivisionError):
    with job_dir.open_job_dir(str(tmp_path), 0):
      _ = 1 / 0
  text = job_log.log_file(str(tmp_path), 0).read_text()
  assert 'Traceback' in text and 'ZeroDivisionError' in text


def test_is_held_by_one_run_and_free_afterwards(tmp_path):
  path = str(tmp_path)
  with job_dir.open_job_dir(path, 0):
    with pytest.raises(job_dir.JobDirError, match='another process trains in'):
      with job_dir.open_job_dir(path, 0):
        pass
    with job_dir.open_job_dir(path, 1):
      pass
  with job_dir.open_job_dir(path, 0):
    pass


def test_cannot_be_written(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(
    job_dir.JobDirError, match='cannot write to --job_log_dir'
  ):
    with job_dir.open_job_dir(str(tmp_path / 'file'), 0):
      pass


def test_other_storage_is_to_be_mounted():
  with pytest.raises(job_dir.JobDirError, match='path of the mount'):
    with job_dir.open_job_dir('az://bucket/job', 0):
      pass


def test_a_bucket_of_which_the_package_is_missing(monkeypatch):
  def fail(scheme):
    raise ImportError(scheme)

  monkeypatch.setattr(storage, '_filesystem', fail)
  with pytest.raises(job_dir.JobDirError, match='pip install s3fs'):
    with job_dir.open_job_dir('s3://bucket/job', 0):
      pass


def test_a_working_copy_of_a_directory_in_a_bucket():
  url = f'memory://{uuid.uuid4().hex}/run'
  with job_dir.open_job_dir(url, 0) as directory:
    assert (storage.to_path(url) / lease.FILE).exists()
    (directory.path / 'metrics.jsonl').write_text('1')
    directory.upload()
    assert (storage.to_path(url) / 'metrics.jsonl').read_text() == '1'
    assert directory.check() is False
  assert storage.to_path(url).files() == ['logs/train_0.log', 'metrics.jsonl']
  assert not directory.path.exists()


def test_a_bucket_is_locked_before_and_after_its_files_are_copied(monkeypatch):
  calls = []
  for owner, name in (
    (lease.Lease, '__init__'),
    (working_copy.WorkingCopy, 'download'),
    (working_copy.WorkingCopy, 'close'),
    (lease.Lease, 'close'),
  ):
    method = getattr(owner, name)

    def record(*args, method=method):
      calls.append(method.__qualname__)
      method(*args)

    monkeypatch.setattr(owner, name, record)
  with job_dir.open_job_dir(f'memory://{uuid.uuid4().hex}/run', 0):
    pass
  assert calls == [
    'Lease.__init__',
    'WorkingCopy.download',
    'WorkingCopy.close',
    'Lease.close',
  ]


def test_a_bucket_in_use_is_not_written(monkeypatch):
  monkeypatch.setattr(lease, '_RENEW_SECS', 0.01)
  url = f'memory://{uuid.uuid4().hex}/run'
  with job_dir.open_job_dir(url, 0):
    files = storage.to_path(url).files()
    with pytest.raises(job_dir.JobDirError, match='another process trains in'):
      with job_dir.open_job_dir(url, 0):
        pass
    assert storage.to_path(url).files() == files


def test_waiting_for_another_run(tmp_path):
  """It takes a moment where a run is at work, and no time where none is."""
  directory = str(tmp_path)
  job_lock.wait_until_free(tmp_path, 60)
  with job_dir.open_job_dir(directory, 0):
    began = time.monotonic()
    job_lock.wait_until_free(tmp_path, 0.2)
    assert time.monotonic() - began >= 0.2
  job_lock.wait_until_free(tmp_path, 60)
  with job_dir.open_job_dir(directory, 0):
    pass


def test_a_deleted_lock_file_does_not_admit_a_second_run(tmp_path):
  with job_dir.open_job_dir(str(tmp_path), 0) as directory:
    (tmp_path / '.lock').unlink()
    with pytest.raises(job_dir.JobDirError, match='another process trains in'):
      with job_dir.open_job_dir(str(tmp_path), 0):
        pass
    directory.check()
    assert lease.read_holder(tmp_path)['pid'] == os.getpid()


def test_the_refusal_names_the_holder(tmp_path):
  with job_dir.open_job_dir(str(tmp_path), 0):
    with pytest.raises(
      job_dir.JobDirError,
      match=rf'pid {os.getpid()} on \S+, user \w+, since 20\d\d-.* UTC',
    ):
      with job_dir.open_job_dir(str(tmp_path), 0):
        pass


def _without_directory_locks(descriptor, operation, flock=fcntl.flock):
  """As on NFS."""
  if os.path.isdir(f'/proc/self/fd/{descriptor}'):
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
  flock(descriptor, operation)


def test_without_locks_of_directories(tmp_path, monkeypatch):
  monkeypatch.setattr(fcntl, 'flock', _without_directory_locks)
  with job_dir.open_job_dir(str(tmp_path), 0) as first:
    with pytest.raises(job_dir.JobDirError, match='another process trains in'):
      with job_dir.open_job_dir(str(tmp_path), 0):
        pass
    (tmp_path / '.lock').unlink()
    with job_dir.open_job_dir(str(tmp_path), 0):
      with pytest.raises(job_dir.JobDirError, match='another process trains'):
        first.check()


@pytest.fixture
def no_locks(monkeypatch):
  """A file system without locks."""
  monkeypatch.setattr(lease, '_SETTLE_SECS', 0.05)

  def unsupported(descriptor, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

  monkeypatch.setattr(fcntl, 'flock', unsupported)


def test_without_locks_a_lease_is_renewed(
  tmp_path, no_locks, monkeypatch, caplog
):
  monkeypatch.setattr(lease, '_RENEW_SECS', 0.05)
  monkeypatch.setattr(lease, '_EXPIRY_SECS', 240)
  with job_dir.open_job_dir(str(tmp_path), 0) as first:
    assert 'has no locks' in caplog.text
    with pytest.raises(job_dir.JobDirError, match=f'pid {os.getpid()} on'):
      with job_dir.open_job_dir(str(tmp_path), 0):
        pass
    first.check()
  # The lease has ended: nothing waits.
  with job_dir.open_job_dir(str(tmp_path), 0):
    pass


def test_a_lease_that_is_not_renewed_expires(tmp_path, no_locks, monkeypatch):
  monkeypatch.setattr(lease, '_EXPIRY_SECS', 0.2)
  other = {'pid': 1, 'host': 'other', 'run_id': 'x', 'renewals': 3}
  (tmp_path / '.lock').write_text(json.dumps(other))
  with job_dir.open_job_dir(str(tmp_path), 0) as first:
    assert lease.read_holder(tmp_path)['pid'] == os.getpid()
    # Another process has found that lease expired too.
    (tmp_path / '.lock').write_text(json.dumps(other))
    with pytest.raises(job_dir.JobDirError, match='pid 1 on other'):
      first.check()


def _check_shared(*directories):
  """Checks as the processes of one job; returns their errors."""
  errors = coordination_store.errors_of_processes(
    [directory.check_shared for directory in directories]
  )
  return [str(error or '') for error in errors]


def test_all_processes_have_one_directory(tmp_path):
  path, other = str(tmp_path / 'job'), str(tmp_path / 'other')
  with (
    job_dir.open_job_dir(path, 0) as first,
    job_dir.open_job_dir(path, 1) as second,
    job_dir.open_job_dir(other, 2, wait_secs=0.2) as third,
  ):
    assert _check_shared(first, second) == ['', '']
    errors = _check_shared(first, second, third)
    assert len(set(errors)) == 1
    assert errors[0].startswith(
      f'--job_log_dir of process 2 of 3, {other} (host'
    )
    # That of another run.
    (tmp_path / 'other' / '.lock').write_text(
      (tmp_path / 'job' / '.lock')
      .read_text()
      .replace('"run_id": "', '"run_id": "x')
    )
    assert _check_shared(first, second, third) == errors
    # Without its own lock file, as on a full disk, process 0 cannot tell.
    (tmp_path / 'job' / '.lock').write_text('')
    assert _check_shared(first, second, third) == ['', '', '']


def test_checkpoints_that_are_a_file(tmp_path):
  (tmp_path / 'checkpoints').write_text('')
  with pytest.raises(job_dir.JobDirError, match='is not a directory'):
    with job_dir.open_job_dir(str(tmp_path), 0):
      pass


def _delete(path: pathlib.Path) -> str:
  shutil.rmtree(path)
  return 'was deleted'


def _move(path: pathlib.Path) -> str:
  path.rename(path.with_name('elsewhere'))
  return f'was moved to {path.with_name("elsewhere")}'


def _replace(path: pathlib.Path) -> str:
  message = _move(path)
  shutil.copytree(path.with_name('elsewhere'), path)
  return f'{message}; another directory is in its place'


@pytest.mark.parametrize('change', [_delete, _move, _replace])
def test_a_directory_that_is_gone(tmp_path, change):
  path = tmp_path / 'job'
  with job_dir.open_job_dir(str(path), 0) as directory:
    directory.check()
    message = change(path)
    with pytest.raises(job_dir.JobDirGoneError, match=message):
      directory.check()
    directory.check_at_intervals()  # Not yet due.
    with pytest.raises(job_dir.JobDirGoneError):
      directory.raise_if_gone()


def test_a_directory_that_returns(tmp_path, caplog):
  path = tmp_path / 'job'
  with job_dir.open_job_dir(str(path), 0, wait_secs=2) as directory:
    path.rename(tmp_path / 'elsewhere')
    sleeps = []

    def sleep(seconds):
      sleeps.append(seconds)
      if len(sleeps) == 3:
        (tmp_path / 'elsewhere').rename(path)

    directory.check(sleep)
    assert len(sleeps) == 3
    assert 'waiting up to 2 s for it to return' in caplog.text
    path.rename(tmp_path / 'elsewhere')
    with pytest.raises(job_dir.JobDirGoneError, match='not return within 2 s'):
      directory.check(lambda seconds: None)


def test_an_error_is_explained_by_a_directory_that_is_gone(tmp_path):
  path = tmp_path / 'job'
  with pytest.raises(job_dir.JobDirGoneError, match=r'was deleted \(OSError'):
    with job_dir.open_job_dir(str(path), 0):
      shutil.rmtree(path)
      raise OSError('no file')


def test_a_log_on_a_full_disk_is_reported_once(tmp_path, capsys, monkeypatch):
  job_log.log_to_console()
  root = std_logging.getLogger()
  try:
    with pytest.raises(ValueError, match='the real error'):
      with job_dir.open_job_dir(str(tmp_path), 0):

        def full(descriptor, line):
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, 'write', full)
        for _ in range(100):
          logging.info('hello')
        raise ValueError('the real error')
  finally:
    root.removeHandler(root.handlers[-1])
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1 and 'train_0.log: No space left on device' in lines[0]
