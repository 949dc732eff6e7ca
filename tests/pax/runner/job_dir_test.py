# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The job directory: held by one run, written to, with a log."""

from __future__ import annotations

import time

import pytest
from absl import logging

from pax.runner import job_dir


def test_makes_the_directory_and_logs_into_it(tmp_path):
  path = str(tmp_path / 'a' / 'b')
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.INFO)
  try:
    with job_dir.open_job_dir(path, 3):
      logging.info('hello')
    logging.info('too late')
  finally:
    logging.set_verbosity(verbosity)
  text = job_dir.log_file(path, 3).read_text()
  assert 'hello' in text and 'too late' not in text


def test_logs_the_traceback_of_what_leaves_it(tmp_path):
  with pytest.raises(ZeroDivisionError):
    with job_dir.open_job_dir(str(tmp_path), 0):
      _ = 1 / 0
  text = job_dir.log_file(str(tmp_path), 0).read_text()
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


def test_a_bucket_is_to_be_mounted():
  with pytest.raises(job_dir.JobDirError, match='mount the bucket'):
    with job_dir.open_job_dir('gs://bucket/job', 0):
      pass


def test_waiting_for_another_run(tmp_path):
  """It takes a moment where a run is at work, and no time where none is."""
  directory = str(tmp_path)
  job_dir.wait_until_free(directory, 60)
  with job_dir.open_job_dir(directory, 0):
    began = time.monotonic()
    job_dir.wait_until_free(directory, 0.2)
    assert time.monotonic() - began >= 0.2
  job_dir.wait_until_free(directory, 60)
  with job_dir.open_job_dir(directory, 0):
    pass
