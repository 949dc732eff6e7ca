# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Waiting for files of other processes, and failures of one process."""

from __future__ import annotations

import threading
import uuid
from concurrent import futures

import jax
import pytest

from pax import checkpoints, coordination_service
from pax.checkpoints import writing
from pax.checkpoints.formats import layouts
from pax.files import storage, temporary_folders
from tests.testing import coordination_store


def test_waits_until_a_file_appears(tmp_path):
  answers = iter([False, False, True])
  writing.wait_until(lambda: next(answers), 'x', tmp_path)


def test_a_file_that_does_not_appear(tmp_path, monkeypatch):
  monkeypatch.setattr(writing, '_VISIBLE_SECS', 0.05)
  with pytest.raises(checkpoints.CheckpointError, match='has written x, and'):
    writing.wait_until(lambda: False, 'x', tmp_path)


def test_no_wait_in_a_folder_that_is_gone(tmp_path, monkeypatch):
  monkeypatch.setattr(writing, '_VISIBLE_SECS', 1e6)
  with pytest.raises(FileNotFoundError):
    writing.wait_until(lambda: False, 'x', tmp_path / 'moved')


def test_a_full_temporary_directory_fails_all_processes(monkeypatch):
  """No process waits for the one that cannot make its directory."""
  place = threading.local()
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(jax, 'process_index', lambda: place.index)
  make = temporary_folders.TemporaryFolder

  def make_or_fail(kind):
    if place.index == 1:
      raise OSError('no space in TMPDIR')
    return make(kind)

  monkeypatch.setattr(temporary_folders, 'TemporaryFolder', make_or_fail)
  server = coordination_store.Server(2)
  folder = storage.to_path(f'memory://{uuid.uuid4().hex}/run/checkpoints')

  def write(index):
    place.index = index
    store = coordination_store.Store(server, index)
    barriers = coordination_service.Barriers('test', 60, store)
    with pytest.raises(Exception) as error:
      writing.write(
        layouts.FileLayout(),
        folder / 'checkpoint_2',
        writing.Contents({}, 2),
        barriers,
      )
    return str(error.value)

  with futures.ThreadPoolExecutor(2) as pool:
    assert list(pool.map(write, range(2))) == [
      'process 1 of 2: no space in TMPDIR',
      'no space in TMPDIR',
    ]
  assert not folder.files()
