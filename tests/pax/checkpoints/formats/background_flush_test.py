# SPDX-License-Identifier: Apache-2.0
"""Flushes of files that are being written."""

# bazel: size=medium
from __future__ import annotations

import errno
import os

import pytest
import tensorstore as ts

from pax.checkpoints.formats import background_flush
from pax.files import atomic_file
from tests.testing import polling

_BYTES = background_flush._MIN_BYTES


def _nothing():
  pass


def _record_flushes(monkeypatch):
  flushed = []
  sync = atomic_file.sync

  def record(path):
    flushed.append(path.name)
    sync(path)

  monkeypatch.setattr(atomic_file, 'sync', record)
  return flushed


def test_all_files_of_the_folder_are_flushed_once(tmp_path, monkeypatch):
  flushed = _record_flushes(monkeypatch)
  with background_flush.BackgroundFlush(tmp_path, 'a') as flush:
    (tmp_path / 'a/d').mkdir(parents=True)
    for name, size in {'a/1': _BYTES, 'a/2': 9, 'a/d/3': 0}.items():
      (tmp_path / name).write_bytes(os.urandom(size))
    (tmp_path / 'other').write_bytes(b'other')
    flush.finish(_nothing)
  assert sorted(flushed) == ['1', '2', '3']


def test_the_last_files_are_flushed_during_a_function(tmp_path, monkeypatch):
  flushed = _record_flushes(monkeypatch)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'small').write_bytes(b'small')

    def wait():
      polling.wait_until(lambda: flushed == ['small'])
      return 'result'

    assert flush.finish(wait) == 'result'


def test_a_file_that_vanishes_is_no_error(tmp_path, monkeypatch):
  flushed = _record_flushes(monkeypatch)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'temporary').write_bytes(bytes(_BYTES))
    polling.wait_until(lambda: flushed == ['temporary'])
    (tmp_path / 'temporary').rename(tmp_path / 'file')
    flush.finish(_nothing)
  assert flushed == ['temporary', 'file']


def test_a_large_file_is_flushed_before_the_others_are_written(
  tmp_path, monkeypatch
):
  flushed = _record_flushes(monkeypatch)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'large').write_bytes(bytes(_BYTES))
    polling.wait_until(lambda: flushed == ['large'])
    (tmp_path / 'small').write_bytes(b'small')
    flush.finish(_nothing)
  assert flushed == ['large', 'small']


def test_a_file_of_tensorstore_is_complete_when_it_is_renamed(
  tmp_path, monkeypatch
):
  flushed = _record_flushes(monkeypatch)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'first.__lock').write_bytes(bytes(_BYTES))
    # By when this one is flushed, the watcher has seen the other.
    (tmp_path / 'second').write_bytes(bytes(_BYTES))
    polling.wait_until(lambda: flushed == ['second'])
    (tmp_path / 'first.__lock').rename(tmp_path / 'first')
    polling.wait_until(lambda: flushed == ['second', 'first'])
    flush.finish(_nothing)
  assert flushed == ['second', 'first']


def test_tensorstore_writes_under_the_temporary_name(tmp_path):
  names = set()
  store = ts.KvStore.open({'driver': 'file', 'path': f'{tmp_path}/'}).result()
  writing = store.write('file', bytes(2**28))
  while not writing.done():
    names.update(os.listdir(tmp_path))
  writing.result()
  assert names - {'file'} == {'file.__lock'}


def test_a_file_that_grows_later_is_flushed_again(tmp_path, monkeypatch):
  flushed = _record_flushes(monkeypatch)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'large').write_bytes(bytes(_BYTES))
    polling.wait_until(lambda: flushed == ['large'])
    with (tmp_path / 'large').open('ab') as file:
      file.write(b'more')
    flush.finish(_nothing)
  assert flushed == ['large', 'large']


@pytest.mark.parametrize('size', [9, _BYTES])
def test_errors_of_the_disk_are_raised(tmp_path, monkeypatch, size):
  def fail(path):
    raise OSError(errno.EIO, 'Input/output error', str(path))

  monkeypatch.setattr(atomic_file, 'sync', fail)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'file').write_bytes(bytes(size))
    with pytest.raises(OSError, match='Input/output error'):
      flush.finish(_nothing)


def test_a_folder_that_does_not_exist_has_no_files(tmp_path):
  with background_flush.BackgroundFlush(tmp_path, 'missing') as flush:
    flush.finish(_nothing)
