# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Leases of job directories: one holder, renewal, expiry, takeover.

In local directories and in buckets.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import uuid

import pytest

from pax.files import storage
from pax.runner import lease


@pytest.fixture(params=['local', 'bucket'])
def directory(request, tmp_path):
  if request.param == 'local':
    return tmp_path
  return storage.to_path(f'memory://{uuid.uuid4().hex}/run')


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
  monkeypatch.setattr(lease, '_EXPIRY_SECS', 0.5)
  monkeypatch.setattr(lease, '_SETTLE_SECS', 0.05)


def write_holder(directory, **fields):
  holder = {
    'pid': 1,
    'host': 'other',
    'run_id': 'a',
    'boot_id': 'b',
    'renewals': 3,
  }
  (directory / lease.FILE).write_text(json.dumps(holder | fields))


def test_a_free_directory(directory):
  own = lease.Lease(directory)
  holder = json.loads((directory / lease.FILE).read_text())
  assert holder['pid'] == os.getpid()
  assert holder['host'] == socket.gethostname()
  own.check()
  own.close()
  assert not (directory / lease.FILE).exists()


def test_a_lease_of_this_process_is_refused(directory, monkeypatch):
  monkeypatch.setattr(lease, '_EXPIRY_SECS', 240)
  monkeypatch.setattr(lease, '_RENEW_SECS', 0.01)
  own = lease.Lease(directory)
  match = rf'pid {os.getpid()} on \S+, user \w+, since .* UTC'
  with pytest.raises(lease.LockedError, match=match):
    lease.Lease(directory)
  own.close()


def test_the_lease_of_a_live_run_is_refused(directory, monkeypatch):
  read = lease._read
  renewals = iter(range(3, 1000))

  def renew(file):
    # As the other run does meanwhile.
    write_holder(directory, renewals=next(renewals))
    return read(file)

  write_holder(directory)
  with monkeypatch.context() as patch:
    patch.setattr(lease, '_read', renew)
    with pytest.raises(lease.LockedError, match='pid 1 on other'):
      lease.Lease(directory)
  assert read(directory / lease.FILE)['run_id'] == 'a'


def test_the_lease_of_a_killed_run_expires(directory):
  write_holder(directory)
  lease.Lease(directory).close()


def test_no_wait_for_a_dead_process_of_this_host(directory, monkeypatch):
  monkeypatch.setattr(lease, '_EXPIRY_SECS', 1e6)
  # Another process had this pid before the host was restarted.
  write_holder(directory, host=socket.gethostname(), boot_id='earlier')
  lease.Lease(directory).close()
  process = subprocess.Popen(['true'])
  process.wait()
  own = lease.create_holder()
  write_holder(directory, **own | {'pid': process.pid})
  lease.Lease(directory).close()
  # In a container every job may have the same pid.
  write_holder(directory, **own | {'run_id': 'earlier'})
  lease.Lease(directory).close()


@pytest.mark.parametrize(
  'fields', [{'pid_namespace': 'that of another container'}, {'boot_id': None}]
)
def test_waits_for_a_process_that_may_be_alive(directory, caplog, fields):
  """One that this process cannot see, or of an older version of Pax."""
  own = lease.create_holder() | {'pid': 2**22 + 1, 'run_id': 'x'} | fields
  text = json.dumps({k: v for k, v in own.items() if v is not None})
  (directory / lease.FILE).write_text(text)
  lease.Lease(directory).close()
  assert 'Waiting up to 0.5 s' in caplog.text


@pytest.mark.parametrize('content', ['', '[]', '{"pid": "x"}'])
def test_a_damaged_lease_is_replaced(directory, content):
  (directory / lease.FILE).write_text(content)
  lease.Lease(directory).close()


def test_a_lease_that_another_run_took(directory):
  own = lease.Lease(directory)
  write_holder(directory)
  with pytest.raises(lease.LockedError, match='pid 1 on other'):
    own.check()
  own.close()
  assert (directory / lease.FILE).exists()


def test_the_holder_renews_its_lease(directory, monkeypatch):
  monkeypatch.setattr(lease, '_RENEW_SECS', 0.01)
  own = lease.Lease(directory)
  while (lease.read_holder(directory) or {}).get('renewals', 0) < 3:
    pass
  own.close()
