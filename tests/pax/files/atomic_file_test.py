# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A file is complete or absent, and an error leaves the older one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from pax.files import atomic_file


def test_writes_the_file_and_creates_no_folder(tmp_path):
  path = tmp_path / 'a' / 'b' / 'c.txt'
  for make in (atomic_file.write_text, lambda p, _: atomic_file.AtomicFile(p)):
    with pytest.raises(FileNotFoundError):
      make(path, 'x')
  with pytest.raises(FileNotFoundError):
    atomic_file.make_folder(path.parent)
  atomic_file.make_folder(path.parent, parents=True)
  atomic_file.write_text(path, 'ä\n')
  assert path.read_bytes() == 'ä\n'.encode()
  assert list(path.parent.iterdir()) == [path]


def test_is_absent_until_the_block_ends(tmp_path):
  path = tmp_path / 'x'
  with atomic_file.open_atomic(path) as file:
    file.write(b'1')
    file.flush()
    assert not path.exists()
  assert path.read_bytes() == b'1'


def test_an_error_leaves_the_older_file(tmp_path):
  path = tmp_path / 'x'
  atomic_file.write_text(path, 'old')
  with pytest.raises(KeyError), atomic_file.open_atomic(path) as file:
    file.write(b'new')
    raise KeyError
  assert path.read_text() == 'old'
  assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_closing_masks_no_error_and_leaves_nothing(
  tmp_path, monkeypatch
):
  with pytest.raises(OSError, match='No space left'):
    with atomic_file.open_atomic(tmp_path / 'x') as file:
      file.write(b'1')
      # The buffered byte cannot be written when the file is closed either.
      os.close(file.fileno())
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  assert not list(tmp_path.iterdir())


def test_an_error_of_flushing_leaves_the_older_file(tmp_path, monkeypatch):
  path = tmp_path / 'x'
  atomic_file.write_text(path, 'old')

  def fail(descriptor):
    raise OSError(errno.EIO, os.strerror(errno.EIO))

  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(OSError, match='Input/output error'):
    atomic_file.write_text(path, 'new')
  assert path.read_text() == 'old'
  assert list(tmp_path.iterdir()) == [path]
  atomic_file.write_text(path, 'plot', is_durable=False)
  assert path.read_text() == 'plot'


def test_folders_that_cannot_be_flushed_are_no_error(tmp_path, monkeypatch):
  def fail(descriptor):
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

  monkeypatch.setattr(os, 'fsync', fail)
  atomic_file.sync(tmp_path)
  (tmp_path / 'x').write_text('')
  with pytest.raises(OSError, match='Invalid argument'):
    atomic_file.sync(tmp_path / 'x')


def test_files_of_killed_processes_are_deleted(tmp_path):
  path = tmp_path / 'x'
  script = (
    f'from pax.files import atomic_file; atomic_file.AtomicFile({str(path)!r})'
  )
  subprocess.run([sys.executable, '-c', script], check=True)
  (stale,) = tmp_path.iterdir()
  foreign = stale.with_name('x.other-host.0123456789ab.part')
  foreign.touch()
  atomic_file.write_text(path, 'new')
  assert set(tmp_path.iterdir()) == {path, foreign}
  os.utime(foreign, (0, 0))
  atomic_file.write_text(path, 'newer')
  assert list(tmp_path.iterdir()) == [path]


def test_several_files_of_one_path_may_be_open(tmp_path):
  path = tmp_path / 'x'
  first, second = atomic_file.AtomicFile(path), atomic_file.AtomicFile(path)
  first.file.write(b'1')
  second.file.write(b'2')
  first.commit()
  second.commit()
  assert path.read_bytes() == b'2'
  assert list(tmp_path.iterdir()) == [path]
