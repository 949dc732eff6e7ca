# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Working copies of job directories: what is downloaded, what is uploaded."""

from __future__ import annotations

import shutil
import uuid

import pytest

from pax.files import side_files, storage, working_copy

NEVER_SECS = 1e6


@pytest.fixture
def bucket():
  side_files.reset_warnings()
  return storage.to_path(f'memory://{uuid.uuid4().hex}/run')


def open_copy(bucket, **options):
  copy = working_copy.WorkingCopy(bucket, **options)
  copy.download(NEVER_SECS)
  return copy


def test_files_are_appended_to_over_restarts(bucket):
  for life in range(2):
    copy = open_copy(bucket)
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
  copy = open_copy(bucket)
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
  copy = open_copy(bucket)
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
  copy = open_copy(bucket)
  assert working_copy.origin(copy.path) == bucket
  assert working_copy.origin(copy.path / 'a/b') == bucket / 'a/b'
  assert working_copy.origin(str(bucket)) == bucket
  copy.close()
  assert working_copy.origin(copy.path / 'a') == copy.path / 'a'


def test_a_copy_that_cannot_be_uploaded_remains(bucket, monkeypatch, caplog):
  def fail(path, file):
    raise OSError('503')

  copy = open_copy(bucket)
  (copy.path / 'a').write_text('1')
  with monkeypatch.context() as patch:
    patch.setattr(storage.BucketPath, 'upload', fail)
    with pytest.raises(OSError, match='503'):
      working_copy.upload(copy.path / 'x')
    copy.close()
  kept = copy.path.with_name(f'unsaved_{copy.path.name}')
  assert (kept / 'a').read_text() == '1'
  assert str(kept) in caplog.text
  shutil.rmtree(kept)


def test_processes_upload_what_they_changed(bucket):
  for name in ('logs/train_0.log', 'logs/train_1.log', 'metrics.jsonl', 'x'):
    (bucket / name).write_text('1')
  first, second = (open_copy(bucket, is_primary=i == 0) for i in range(2))
  for index, copy in enumerate((first, second)):
    with (copy.path / f'logs/train_{index}.log').open('a') as file:
      file.write('2')
  (first.path / 'metrics.jsonl').write_text('12')
  # Both set it aside, and the first one writes a new one.
  for copy in (first, second):
    (copy.path / 'x').rename(copy.path / 'x.damaged')
  (first.path / 'x').write_text('3')
  for copy in (first, second):
    copy.close()
  assert {name: (bucket / name).read_text() for name in bucket.files()} == {
    'logs/train_0.log': '12',
    'logs/train_1.log': '12',
    'metrics.jsonl': '12',
    'x': '3',
    'x.damaged': '1',
  }


def test_a_copy_without_a_download_uploads_nothing(bucket):
  copy = working_copy.WorkingCopy(bucket)
  (copy.path / 'a').write_text('1')
  copy.close()
  assert not copy.path.exists() and not bucket.exists()
