# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Working copies of job directories: what is downloaded, what is uploaded."""

from __future__ import annotations

import uuid

import pytest

from pax import side_files, storage, working_copy

NEVER_SECS = 1e6


@pytest.fixture
def bucket():
  side_files.reset_warnings()
  return storage.to_path(f'memory://{uuid.uuid4().hex}/run')


def test_files_are_appended_to_over_restarts(bucket):
  for life in range(2):
    copy = working_copy.WorkingCopy(bucket, NEVER_SECS)
    with (copy.path / 'metrics.jsonl').open('a') as file:
      file.write(f'{life}\n')
    (copy.path / 'logs').mkdir(exist_ok=True)
    (copy.path / f'logs/{life}.log').write_text('x')
    copy.close()
    assert not copy.path.exists()
  assert bucket.files() == ['logs/0.log', 'logs/1.log', 'metrics.jsonl']
  assert (bucket / 'metrics.jsonl').read_text() == '0\n1\n'


def test_checkpoints_events_and_outputs_are_not_downloaded(bucket):
  for name in (
    'checkpoints/checkpoint_0',
    'summaries/train/events',
    'eval_out/a/b.jsonl',
    'output/a/b',
    'run.json',
    'logs/train_0.log',
  ):
    (bucket / name).write_text(name)
  copy = working_copy.WorkingCopy(bucket, NEVER_SECS)
  assert storage.files(copy.path) == ['logs/train_0.log', 'run.json']
  copy.close()
  assert len(bucket.files()) == 6


def test_only_changes_are_uploaded(bucket, monkeypatch):
  uploads = []
  upload = storage.BucketPath.upload

  def record(path, file):
    uploads.append(path.name)
    upload(path, file)

  monkeypatch.setattr(storage.BucketPath, 'upload', record)
  (bucket / 'old').write_text('x')
  copy = working_copy.WorkingCopy(bucket, NEVER_SECS)
  (copy.path / 'a').write_text('1')
  (copy.path / 'b.part').write_text('1')
  copy.upload()
  copy.upload()
  (copy.path / 'a').write_text('12')
  copy.upload()
  assert uploads == ['a', 'a']
  (copy.path / 'a').rename(copy.path / 'a.damaged')
  copy.close()
  assert bucket.files() == ['a.damaged', 'old']


def test_origins(bucket):
  copy = working_copy.WorkingCopy(bucket, NEVER_SECS)
  assert working_copy.origin(copy.path) == bucket
  assert working_copy.origin(copy.path / 'a/b') == bucket / 'a/b'
  assert working_copy.origin(str(bucket)) == bucket
  copy.close()
  assert working_copy.origin(copy.path / 'a') == copy.path / 'a'


def test_a_copy_that_cannot_be_uploaded_remains(bucket, monkeypatch, caplog):
  def fail(path, file):
    raise OSError('503')

  copy = working_copy.WorkingCopy(bucket, NEVER_SECS)
  (copy.path / 'a').write_text('1')
  with monkeypatch.context() as patch:
    patch.setattr(storage.BucketPath, 'upload', fail)
    with pytest.raises(OSError, match='503'):
      working_copy.upload(copy.path / 'x')
    copy.close()
  assert (copy.path / 'a').read_text() == '1'
  assert str(copy.path) in caplog.text
