# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The lock of a job directory in a bucket: one holder, expiry, takeover."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import uuid

import pytest

from pax import storage
from pax.runner import bucket_lock, job_lock


@pytest.fixture
def bucket():
  return storage.to_path(f'memory://{uuid.uuid4().hex}/run')


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
  monkeypatch.setattr(bucket_lock, '_EXPIRY_SECS', 0.5)
  monkeypatch.setattr(bucket_lock, '_SETTLE_SECS', 0.05)


def write_holder(bucket, **fields):
  holder = {
    'pid': 1,
    'host': 'other',
    'run_id': 'a',
    'boot_id': 'b',
    'renewals': 3,
  }
  (bucket / job_lock.FILE).write_text(json.dumps(holder | fields))


def test_a_free_directory(bucket):
  lock = bucket_lock.BucketLock(bucket)
  holder = json.loads((bucket / job_lock.FILE).read_text())
  assert holder['pid'] == os.getpid()
  assert holder['host'] == socket.gethostname()
  lock.check()
  lock.close()
  assert not (bucket / job_lock.FILE).exists()


def test_the_lock_of_a_live_run_is_refused(bucket, monkeypatch):
  read = bucket_lock._read
  renewals = iter(range(3, 1000))

  def renew(file):
    # As the other run does meanwhile.
    write_holder(bucket, renewals=next(renewals))
    return read(file)

  write_holder(bucket)
  with monkeypatch.context() as patch:
    patch.setattr(bucket_lock, '_read', renew)
    with pytest.raises(job_lock.LockedError, match='pid 1 on other'):
      bucket_lock.BucketLock(bucket)
  assert read(bucket / job_lock.FILE)['run_id'] == 'a'


def test_the_lock_of_a_killed_run_expires(bucket):
  write_holder(bucket)
  bucket_lock.BucketLock(bucket).close()


def test_no_wait_for_a_dead_process_of_this_host(bucket, monkeypatch):
  monkeypatch.setattr(bucket_lock, '_EXPIRY_SECS', 1e6)
  # Another process had this pid before the host was restarted.
  write_holder(bucket, host=socket.gethostname(), boot_id='earlier')
  bucket_lock.BucketLock(bucket).close()
  process = subprocess.Popen(['true'])
  process.wait()
  write_holder(
    bucket,
    host=socket.gethostname(),
    boot_id=bucket_lock._boot_id(),
    pid=process.pid,
  )
  bucket_lock.BucketLock(bucket).close()


@pytest.mark.parametrize('content', ['', '[]', '{"pid": "x"}'])
def test_a_damaged_lock_is_replaced(bucket, content):
  (bucket / job_lock.FILE).write_text(content)
  bucket_lock.BucketLock(bucket).close()


def test_a_lock_that_another_run_took(bucket):
  lock = bucket_lock.BucketLock(bucket)
  write_holder(bucket)
  with pytest.raises(job_lock.LockedError, match='pid 1 on other'):
    lock.check()
  lock.close()
  assert (bucket / job_lock.FILE).exists()


def test_the_holder_renews_its_lock(bucket, monkeypatch):
  monkeypatch.setattr(bucket_lock, '_RENEW_SECS', 0.01)
  lock = bucket_lock.BucketLock(bucket)
  while json.loads((bucket / job_lock.FILE).read_text())['renewals'] < 3:
    pass
  lock.close()
