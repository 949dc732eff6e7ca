# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Staging of checkpoints in buckets: uploads of two processes, failures."""

from __future__ import annotations

import tempfile
import uuid

import jax
import pytest

from pax.checkpoints import paths, staging
from pax.files import storage


@pytest.fixture
def final():
  folder = storage.to_path(f'memory://{uuid.uuid4().hex}/run/checkpoints')
  return folder / 'checkpoint_00000002'


@pytest.fixture
def stage(final, monkeypatch, tmp_path):
  """Returns the staging of a process of two; its methods run in that one."""
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  opened = []

  def open_of(index, *, is_folder):
    place = staging.BucketStaging(final, is_folder=is_folder)
    opened.append(place)
    be(index)
    return place

  def be(index):
    monkeypatch.setattr(jax, 'process_index', lambda: index)

  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  open_of.be = be
  yield open_of
  for place in opened:
    place.close()
  assert not list(tmp_path.iterdir())


def write(place, *names):
  for name in names:
    file = place.folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name)
  place.share(names)


def test_a_folder_has_the_files_of_both_processes(final, stage):
  first, second = (stage(i, is_folder=True) for i in range(2))
  (final / 'part of a killed job').write_text('x')
  for index, place in enumerate((first, second)):
    stage.be(index)
    place.prepare()
    assert not final.files()
  for index, place in enumerate((first, second)):
    stage.be(index)
    place.create()
    write(place, f'state/{index}')
  assert final.files() == ['state/0', 'state/1']
  assert (first.others / 'state/1').exists()
  assert not paths.is_committed(final)
  (first.folder / 'manifest').write_text('x')
  first.folder.rename(first.local)
  stage.be(0)
  first.publish()
  assert paths.is_committed(final)
  assert final.files() == [storage.MARKER, 'manifest', 'state/0', 'state/1']
  # The others may not reach the barrier after it: it remains.
  first.discard(ValueError())
  assert paths.is_committed(final)


def test_one_object_has_parts_next_to_it(final, stage):
  first, second = (stage(i, is_folder=False) for i in range(2))
  for index, place in enumerate((first, second)):
    stage.be(index)
    place.prepare()
    place.create()
    write(place, f'train_input/{index}')
  parts = final.with_name(f'tmp_{final.name}')
  # The first process has its own.
  assert parts.files() == ['train_input/1'] and first.others == parts
  assert not final.is_file()
  first.local.write_text('x')
  stage.be(0)
  first.publish()
  assert final.parent.files() == [final.name]


def test_the_first_process_removes_parts_after_an_error(final, stage):
  first, second = (stage(i, is_folder=True) for i in range(2))
  for index, place in enumerate((first, second)):
    stage.be(index)
    place.prepare()
    place.create()
    write(place, f'state/{index}')
  second.discard(ValueError())
  assert final.files() == ['state/0', 'state/1']
  first.discard(ValueError())
  assert not final.files()


def test_nothing_is_removed_before_it_was_prepared(final, stage):
  """Such as a complete checkpoint that has the name."""
  (final / storage.MARKER).write_text('x')
  stage(0, is_folder=True).discard(ValueError())
  assert paths.is_committed(final)
  paths.clean(final.parent)
  assert paths.is_committed(final)


def test_parts_of_killed_jobs_are_removed(final):
  (final / 'state/0').write_text('x')
  (final.with_name('tmp_checkpoint_3') / 'x').write_text('x')
  (final.with_name('checkpoint_4')).write_text('x')
  paths.clean(final.parent)
  assert final.parent.files() == ['checkpoint_4']
