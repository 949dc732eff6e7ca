# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A file is complete or absent, and an error leaves the older one."""

from __future__ import annotations

import pytest

from pax import atomic_file


def test_creates_the_folder_and_the_file(tmp_path):
  path = tmp_path / 'a' / 'b.txt'
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
