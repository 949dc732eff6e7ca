# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
"""Jobs whose directory is in a bucket of an S3-compatible server."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from pax import storage
from pax.checkpoints import paths
from tests.integration import binary
from tests.testing import bucket_server, polling


@pytest.fixture
def bucket():
  with bucket_server.job_directory() as bucket:
    yield bucket


@pytest.fixture
def job(bucket):
  """The directory of a job in a bucket behind a proxy."""
  return bucket[0]


@pytest.fixture
def proxy(bucket):
  return bucket[1]


def loss_bits(text):
  losses = {}
  for record in map(json.loads, text.splitlines()):
    if record['split'] == 'train':
      losses[record['step']] = np.float32(record['loss']).tobytes()
  return losses


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
  bits, expected = (
    loss_bits((directory / 'metrics.jsonl').read_text())
    for directory in (job, tmp_path)
  )
  assert bits == expected
  assert not [n for n in job.files() if n.endswith(('.part', '.lock'))]
  assert not any(name.startswith('s3:') for name in os.listdir())
