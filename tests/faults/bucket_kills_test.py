# SPDX-License-Identifier: Apache-2.0
# bazel: size=enormous
# bazel: shards=6
# bazel: tags=nightly
"""SIGKILL at named points and random moments of jobs in a bucket.

`buckets_test.py` kills jobs at their requests to the server.
"""

from __future__ import annotations

import pytest

from tests.faults import kill_matrix, kill_points
from tests.testing import bucket_server

pytestmark = bucket_server.SCHEMES
bucket_directory, proxy = bucket_server.job, bucket_server.proxy


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  """A folder for temporary files, which killed jobs do not leave behind."""
  folder = tmp_path / 'temporary'
  folder.mkdir()
  monkeypatch.setenv('TMPDIR', str(folder))
  yield
  assert not list(folder.glob('pax_*'))


@pytest.mark.parametrize('mode', kill_matrix.MODES)
@pytest.mark.parametrize('layout', kill_matrix.LAYOUTS)
def test_named_points(bucket_directory, report, layout, mode):
  job = kill_matrix.create_job(bucket_directory, layout, mode=mode)
  points = kill_points.points(layout, is_bucket=True)
  report(**kill_matrix.kill_at_points(job, points))


@pytest.mark.parametrize('part', range(2))
@pytest.mark.parametrize('mode', kill_matrix.MODES)
@pytest.mark.parametrize('num_processes', [1, 2])
@pytest.mark.parametrize('layout', kill_matrix.LAYOUTS)
def test_random_moments(
  bucket_directory, report, layout, num_processes, mode, part
):
  """More than 200 times in each kind of bucket."""
  job = kill_matrix.create_job(bucket_directory, layout, num_processes, mode)
  num_lives = 16 if num_processes == 1 else 4
  report(**kill_matrix.kill_at_random(job, num_lives, part))
