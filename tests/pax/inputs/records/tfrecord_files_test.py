# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Random access to records of several files."""

from __future__ import annotations

import pathlib

import pytest

from pax.files import tf_records
from pax.inputs.records import tfrecord_files


@pytest.fixture
def paths(tmp_path):
  """Three files of 2, 0 and 3 records."""
  for i, count in enumerate((2, 0, 3)):
    with (tmp_path / f'{i}').open('wb') as file:
      tf_records.write(file, [f'{i}.{j}'.encode() * j for j in range(count)])
  return [str(tmp_path / f'{i}') for i in range(3)]


def test_each_record_has_a_number(paths):
  found = tfrecord_files.RecordFiles(paths)
  assert len(found) == 5
  wanted = [b'', b'0.1', b'', b'2.1', b'2.22.2']
  assert [found.read(i) for i in range(5)] == wanted
  assert found.read(3) == b'2.1'
  assert found.where(3) == f'record 1 of {paths[2]}'


def test_no_file_has_no_record():
  assert len(tfrecord_files.RecordFiles([])) == 0


def test_what_is_no_such_file_is_named(paths, tmp_path):
  (tmp_path / '1').write_text('a text, and nothing else')
  with pytest.raises(ValueError, match=f'byte 0 of {paths[1]!r}'):
    tfrecord_files.RecordFiles(paths)


def test_a_damaged_record_at_a_position(paths):
  # Records have 16 bytes and their data, the last of which is flipped.
  file = pathlib.Path(paths[2])
  content = bytearray(file.read_bytes())
  content[-5] ^= 1
  file.write_bytes(content)
  damage = f'record 2 of {paths[2]} is damaged'
  for position in (16 + 19, 16 + 19 + 12):
    assert tfrecord_files.damage_at(paths[2], position).startswith(damage)
  # Intact, not a record, and a file that is too short.
  for path, position in ((paths[2], 16), (paths[2], 9), (paths[0], 35)):
    assert not tfrecord_files.damage_at(path, position)
  file.write_bytes(content[:-1])
  assert 'complete record' in tfrecord_files.damage_at(paths[2], 35)
