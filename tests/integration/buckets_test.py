# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
"""Jobs whose directory is in a bucket of a server on loopback."""

from __future__ import annotations

import os
import signal

import pytest

from pax.checkpoints import paths
from pax.files import storage
from tests.integration import binary
from tests.testing import bucket_server, nightly, polling

job, proxy = bucket_server.job, bucket_server.proxy


@pytest.mark.parametrize(
  'proxy',
  ['s3', *nightly.cases('gs')],
  indirect=True,
)
def test_a_killed_job_continues_bit_for_bit(tmp_path, job, proxy):
  # The job blocks before the marker of its second checkpoint.
  blocked = []

  def policy(method, path):
    if method == 'PUT' and path.endswith(f'10/{storage.MARKER}'):
      blocked.append(path)
      return bucket_server.HANG
    return bucket_server.FORWARD

  proxy.policy = policy
  process = binary.start('TinySpmd', job)
  polling.wait_until(lambda: bool(blocked), binary.TIMEOUT_SECS)
  process.send_signal(signal.SIGKILL)
  process.wait()
  checkpoints = job / paths.CHECKPOINTS
  assert (checkpoints / 'checkpoint_00000010').exists()
  assert list(paths.steps(checkpoints)) == [0]
  proxy.policy = lambda method, path: bucket_server.FORWARD
  for directory in (job, tmp_path):
    completed = binary.run('TinySpmd', directory)
    assert completed.returncode == 0, completed.stderr
  assert list(paths.steps(checkpoints)) == [0, 10, 20]
  assert binary.loss_bits(job) == binary.loss_bits(tmp_path)
  assert not [n for n in job.files() if n.endswith(('.part', '.lock'))]
  assert not any(name.startswith(('s3:', 'gs:')) for name in os.listdir())
