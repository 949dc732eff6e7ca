# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Jobs that restore from a file or a server that never answers."""

from __future__ import annotations

import os

import pytest

from tests.faults import harness
from tests.testing import bucket_server

bucket_directory, proxy = bucket_server.job, bucket_server.proxy

STEPS = '--set=NUM_STEPS=4'
# The checkpoint itself or a file of it.
LAYOUTS = {
  'spmd': ('TinySpmd', 'metadata/manifest/process_0-of-1.json'),
  'pmap_one_file': ('TinyPmap', ''),
}


@pytest.mark.parametrize('layout', LAYOUTS)
def test_a_file_that_hangs(tmp_path, layout):
  """A FIFO to which nobody writes."""
  exp, name = LAYOUTS[layout]
  job = harness.Job(tmp_path / 'job', exp=exp)
  job.finish(STEPS)
  file = job.checkpoints()[4] / name
  copy = tmp_path / 'copy'
  file.rename(copy)
  os.mkfifo(file)
  flags = ('--set=NUM_STEPS=8', '--on_corrupt_checkpoint=fallback')
  completed = job.run(*flags, '--async_timeout_secs=5')
  assert completed.returncode == harness.ERROR
  assert (
    f'error: {job.checkpoints()[4]} cannot be read: no byte was read for 5 s'
    in completed.stderr
  )
  copy.rename(file)
  job.finish(*flags)
  assert harness.check_losses(job, 8) == 8


# Only TensorStore reads this file before others of the database.
INDEX = 'state/manifest.ocdbt'


@bucket_server.SCHEMES
@pytest.mark.parametrize(
  ('num_processes', 'name'), [(1, 'state/'), (2, 'state/'), (2, INDEX)]
)
def test_a_server_that_never_answers(
  bucket_directory, proxy, monkeypatch, num_processes, name
):
  """The checkpoint is not taken for damaged."""
  monkeypatch.setenv('TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS', '1')
  job = harness.Job(bucket_directory, num_processes=num_processes)
  job.finish(STEPS)
  checkpoint = job.checkpoints()[4]

  def policy(method, path):
    is_hanging = method == 'GET' and f'{checkpoint.name}/{name}' in path
    return bucket_server.HANG if is_hanging else bucket_server.FORWARD

  proxy.policy = policy
  flags = ('--set=NUM_STEPS=8', '--on_corrupt_checkpoint=fallback')
  completed = job.start(*flags).wait()
  assert {c.returncode for c in completed} == {harness.ERROR}, completed
  assert f'{checkpoint} cannot be read' in completed[0].stderr
  proxy.policy = lambda method, path: bucket_server.FORWARD
  job.finish(*flags)
  assert harness.check_losses(job, 8) == 8
