# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Objects in buckets as paths: whole writes, moves and removals by marker."""

from __future__ import annotations

import io
import os
import pathlib
import uuid

import pytest

from pax.files import atomic_file, side_files, storage


@pytest.fixture
def bucket():
  return storage.to_path(f'memory://{uuid.uuid4().hex}/run')


def test_paths_and_urls():
  path = storage.to_path('s3://bucket/run/')
  assert str(path) == os.fspath(path) == 's3://bucket/run'
  assert str(path / 'a' / 'b') == 's3://bucket/run/a/b'
  assert str((path / 'a').parent) == 's3://bucket/run'
  assert str(path.with_name('c')) == 's3://bucket/c'
  assert (path / 'a.json').name == 'a.json'
  assert path == storage.to_path('s3://bucket/run')
  assert path.joinpath('a', 'b').relative_to(path).parts == ('a', 'b')
  assert storage.to_path(path) is path
  assert storage.to_path('/tmp/run') == pathlib.Path('/tmp/run')


@pytest.mark.parametrize('url', ['http://host/run', 'az://bucket/run', 's3://'])
def test_other_urls_are_refused(url):
  with pytest.raises(ValueError, match='neither a local path nor a folder'):
    storage.to_path(url)


def test_local_paths_only_where_urls_cannot_be_used():
  assert storage.require_local('/tmp/a', '--out') == pathlib.Path('/tmp/a')
  with pytest.raises(ValueError, match='--out=gs://b/a is a URL'):
    storage.require_local('gs://b/a', '--out')


def test_objects(bucket):
  assert not bucket.exists()
  with pytest.raises(FileNotFoundError):
    list(bucket.iterdir())
  (bucket / 'a.txt').write_text('hello')
  (bucket / 'folder/b.bin').write_bytes(bytes(range(100)))
  assert bucket.is_dir() and not bucket.is_file()
  assert (bucket / 'a.txt').is_file() and not (bucket / 'a.txt').is_dir()
  assert [path.name for path in bucket.iterdir()] == ['a.txt', 'folder']
  assert bucket.files() == ['a.txt', 'folder/b.bin']
  sizes = {'a.txt': 5, 'folder/b.bin': 100}
  assert storage.file_sizes(bucket) == sizes
  assert storage.file_sizes(bucket / 'a.txt') == {}
  assert list(bucket.glob('*/*.bin')) == [bucket / 'folder/b.bin']
  assert list(bucket.glob('*.bin')) == []
  assert (bucket / 'a.txt').read_text() == 'hello'
  status = (bucket / 'a.txt').stat()
  assert status.st_size == 5 and status.st_mtime > 1e9
  (bucket / 'a.txt').unlink()
  (bucket / 'a.txt').unlink(missing_ok=True)
  with pytest.raises(FileNotFoundError):
    (bucket / 'a.txt').unlink()


def test_reads_parts_of_objects(bucket):
  (bucket / 'b').write_bytes(bytes(range(100)))
  with (bucket / 'b').open('rb', buffering=0) as raw:
    assert [len(part) for part in iter(lambda: raw.read(40), b'')] == [
      40, 40, 20,
    ]  # fmt: skip
  with (bucket / 'b').open() as file:
    assert file.read(2) == b'\0\1'
    file.seek(-1, io.SEEK_END)
    assert file.read() == b'c'
  with pytest.raises(ValueError, match='mode rb only, got ab'):
    (bucket / 'b').open('ab')


def test_exclusive_writes(bucket):
  (bucket / 'lock').write_bytes(b'first', is_exclusive=True)
  with pytest.raises(FileExistsError):
    (bucket / 'lock').write_bytes(b'second', is_exclusive=True)
  assert (bucket / 'lock').read_bytes() == b'first'


def test_trees_lose_their_marker_first_and_get_it_last(bucket, monkeypatch):
  calls = []
  for name in ('unlink', 'copy_to'):
    method = getattr(storage.BucketPath, name)

    def record(path, *args, method=method, name=name, **kwargs):
      calls.append((name, path.name))
      return method(path, *args, **kwargs)

    monkeypatch.setattr(storage.BucketPath, name, record)
  old, new = bucket / 'old', bucket / 'new'
  for name in ('data/1', 'data/2', storage.MARKER):
    (old / name).write_text(name)
  storage.move_tree(old, new)
  assert new.files() == [storage.MARKER, 'data/1', 'data/2']
  assert not old.exists()
  copies = [name for call, name in calls if call == 'copy_to']
  removals = [name for call, name in calls if call == 'unlink']
  assert set(copies[:2]) == {'1', '2'} and copies[2] == storage.MARKER
  assert removals[0] == storage.MARKER
  assert calls.index(('copy_to', storage.MARKER)) < calls.index(
    ('unlink', storage.MARKER)
  )


def test_moves_single_objects(bucket):
  (bucket / 'a').write_text('x')
  storage.move_tree(bucket / 'a', bucket / 'b')
  assert bucket.files() == ['b']


def test_atomic_files_are_whole_objects(bucket):
  atomic_file.write_text(bucket / 'a', 'old')
  with pytest.raises(ZeroDivisionError):
    with atomic_file.open_atomic(bucket / 'a') as file:
      file.write(b'new')
      raise ZeroDivisionError
  assert (bucket / 'a').read_text() == 'old'
  with atomic_file.open_atomic(bucket / 'a') as file:
    file.write(b'new')
    assert (bucket / 'a').read_text() == 'old'
  assert (bucket / 'a').read_text() == 'new'


def test_side_files_are_set_aside_in_the_bucket(bucket):
  side_files.write_text(bucket / 'a.json', '{"x": 1}')
  assert side_files.read_json(bucket / 'a.json', lambda v: v['x']) == 1
  side_files.write_text(bucket / 'a.json', '{')
  assert side_files.read_json(bucket / 'a.json', lambda v: v['x']) is None
  assert bucket.files() == ['a.json.damaged']
  assert side_files.read_json(bucket / 'a.json', lambda v: v) is None


def test_a_bucket_that_cannot_be_read_is_no_damage(bucket, monkeypatch):
  side_files.write_text(bucket / 'a.json', '{"x": 1}')

  def fail(path):
    raise OSError('503')

  monkeypatch.setattr(storage.BucketPath, 'read_bytes', fail)
  with pytest.raises(OSError, match='503'):
    side_files.read_json(bucket / 'a.json', lambda v: v)
  assert bucket.files() == ['a.json']


def test_key_value_stores(monkeypatch):
  for name in ('AWS_ENDPOINT_URL_S3', 'AWS_ACCESS_KEY_ID', 'AWS_REGION'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('AWS_ENDPOINT_URL', 'http://localhost:9')
  monkeypatch.setenv('AWS_DEFAULT_REGION', 'eu-west-1')
  assert storage.kvstore(storage.to_path('s3://bucket/a/b')) == {
    'driver': 's3',
    'bucket': 'bucket',
    'path': 'a/b/',
    'endpoint': 'http://localhost:9',
    'aws_region': 'eu-west-1',
  }
  assert storage.kvstore(storage.to_path('gs://bucket/a')) == {
    'driver': 'gcs',
    'bucket': 'bucket',
    'path': 'a/',
  }
  assert storage.kvstore(pathlib.Path('/tmp/a')) == {
    'driver': 'file',
    'path': '/tmp/a/',
  }
  with pytest.raises(ValueError, match='no access to memory://'):
    storage.kvstore(storage.to_path('memory://bucket/a'))
