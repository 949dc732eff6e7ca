# SPDX-License-Identifier: Apache-2.0
"""Flushes and checksums of files that are being written."""

from __future__ import annotations

import errno
import os

import pytest

from pax import atomic_file
from pax.checkpoints import background_flush, manifest
from tests.testing import polling

_BYTES = background_flush._MIN_BYTES


def _record_flushes(monkeypatch):
  flushed = []
  sync = atomic_file.sync

  def record(path):
    flushed.append(path.name)
    sync(path)

  monkeypatch.setattr(atomic_file, 'sync', record)
  return flushed


def test_entries_are_those_of_the_files(tmp_path):
  names = ['a/large', 'a/small', 'a/d/large', 'a/d/empty']
  with background_flush.BackgroundFlush(tmp_path, 'a') as flush:
    (tmp_path / 'a/d').mkdir(parents=True)
    for i, size in enumerate((_BYTES, 9, 3 * _BYTES, 0)):
      (tmp_path / names[i]).write_bytes(os.urandom(size))
    (tmp_path / 'other').write_bytes(b'other')
    entries = flush.finish()
  assert entries == manifest.file_entries(tmp_path, names)


def test_a_large_file_is_flushed_before_the_others_are_written(
  tmp_path, monkeypatch
):
  flushed = _record_flushes(monkeypatch)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'large').write_bytes(bytes(_BYTES))
    polling.wait_until(lambda: flushed == ['large'])
    (tmp_path / 'small').write_bytes(b'small')
    flush.finish()
  assert flushed == ['large', 'small']


def test_a_file_that_grows_later_is_flushed_and_read_again(
  tmp_path, monkeypatch
):
  flushed = _record_flushes(monkeypatch)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'large').write_bytes(bytes(_BYTES))
    polling.wait_until(lambda: flushed == ['large'])
    with (tmp_path / 'large').open('ab') as file:
      file.write(b'more')
    entries = flush.finish()
  assert flushed == ['large', 'large']
  assert entries == manifest.file_entries(tmp_path, ['large'])


@pytest.mark.parametrize('size', [9, _BYTES])
def test_errors_of_the_disk_are_raised(tmp_path, monkeypatch, size):
  def fail(path):
    raise OSError(errno.EIO, 'Input/output error', str(path))

  monkeypatch.setattr(atomic_file, 'sync', fail)
  with background_flush.BackgroundFlush(tmp_path, '.') as flush:
    (tmp_path / 'file').write_bytes(bytes(size))
    with pytest.raises(OSError, match='Input/output error'):
      flush.finish()


def test_a_folder_that_does_not_exist_has_no_files(tmp_path):
  with background_flush.BackgroundFlush(tmp_path, 'missing') as flush:
    assert flush.finish() == {}
