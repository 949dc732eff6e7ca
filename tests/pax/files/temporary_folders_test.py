# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Temporary folders: removed at their end, or by the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from pax.files import temporary_folders

_KILLED = """
import os, signal
from pax.files import temporary_folders
folder = temporary_folders.TemporaryFolder('test')
(folder.path / 'file').write_text('x')
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  monkeypatch.setenv('TMPDIR', str(tmp_path))
  monkeypatch.setattr(tempfile, 'tempdir', None)


def test_a_folder_is_removed_at_its_end(tmp_path):
  first = temporary_folders.TemporaryFolder('test')
  (first.path / 'file').write_text('x')
  second = temporary_folders.TemporaryFolder('test')
  assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path])
  first.close()
  first.close()
  assert list(tmp_path.iterdir()) == [second.path]
  del second
  assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_process_is_removed(tmp_path):
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
  killed = subprocess.run([sys.executable, '-c', _KILLED], env=environment)
  assert killed.returncode == -signal.SIGKILL
  assert len(list(tmp_path.iterdir())) == 1
  other = temporary_folders.TemporaryFolder('other')
  assert len(list(tmp_path.iterdir())) == 2
  folder = temporary_folders.TemporaryFolder('test')
  assert sorted(tmp_path.iterdir()) == sorted([other.path, folder.path])


def test_another_process_removes_a_folder_before_it_is_locked(
  tmp_path, monkeypatch
):
  made = []
  mkdtemp = tempfile.mkdtemp

  def make(prefix):
    path = mkdtemp(prefix=prefix)
    made.append(path)
    if len(made) == 1:
      temporary_folders.TemporaryFolder('test').close()
      assert not os.path.exists(path)
    return path

  monkeypatch.setattr(tempfile, 'mkdtemp', make)
  folder = temporary_folders.TemporaryFolder('test')
  assert len(made) == 3
  assert list(tmp_path.iterdir()) == [folder.path]


def test_a_folder_that_remains(tmp_path):
  folder = temporary_folders.TemporaryFolder('test')
  (folder.path / 'file').write_text('x')
  kept = folder.keep()
  del folder
  temporary_folders.TemporaryFolder('test')
  assert [path.name for path in kept.iterdir()] == ['file']
