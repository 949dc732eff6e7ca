# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Files of other users, and files that others can write, are refused."""

from __future__ import annotations

import grp
import os
import pathlib

import pytest

from pax.files import trusted_files

STRANGER = 54321
REFUSED = trusted_files.UntrustedFileError


@pytest.fixture
def file(tmp_path):
  folder = tmp_path / 'job'
  folder.mkdir(mode=0o755)
  path = folder / 'config.json'
  path.write_text('{}')
  path.chmod(0o644)
  return path


def test_own_files_are_read(file):
  assert trusted_files.read_bytes(file) == b'{}'
  link = file.parent.parent / 'link'
  link.symlink_to(file)
  assert trusted_files.read_bytes(link) == b'{}'


@pytest.mark.parametrize(
  ('mode', 'reason'),
  [
    (0o666, 'can be written by all users'),
    (0o664, f'can be written by the group {STRANGER}'),
  ],
)
@pytest.mark.parametrize('changes', ['file', 'folder'])
def test_what_others_can_write_is_refused(file, mode, reason, changes):
  changed = file if changes == 'file' else file.parent
  if mode == 0o664:
    _chown(changed, -1, STRANGER)
  changed.chmod(mode | 0o111 * (changed != file))
  with pytest.raises(REFUSED, match=f'{changed} {reason}.*--trust_foreign_fil'):
    trusted_files.read_bytes(file)
  assert trusted_files.read_bytes(file, trust_foreign_files=True) == b'{}'


def test_files_of_sticky_directories_are_read(file):
  file.parent.chmod(0o1777)
  assert trusted_files.read_bytes(file) == b'{}'


def test_a_group_of_one_user_is_that_user(file):
  gid = os.getegid()
  file.chmod(0o664)
  if grp.getgrgid(gid).gr_name == 'root' and os.geteuid() == 0:
    assert trusted_files.read_bytes(file) == b'{}'


@pytest.mark.parametrize('changes', ['file', 'folder'])
def test_files_of_other_users_are_refused(file, changes):
  _chown(file if changes == 'file' else file.parent, STRANGER, -1)
  with pytest.raises(REFUSED, match=f'belongs to user {STRANGER}'):
    trusted_files.read_bytes(file)


def test_the_target_of_a_link_counts(file, tmp_path):
  link = tmp_path / 'own' / 'link'
  link.parent.mkdir()
  link.symlink_to(file)
  _chown(file.parent, STRANGER, -1)
  with pytest.raises(REFUSED, match='belongs to user'):
    trusted_files.read_bytes(link)


def test_directories(tmp_path):
  trusted_files.check_directory(tmp_path)
  tmp_path.chmod(0o777)
  with pytest.raises(REFUSED, match='by all users'):
    trusted_files.check_directory(tmp_path)
  with pytest.raises(FileNotFoundError):
    trusted_files.check_directory(tmp_path / 'none')


def _chown(path: pathlib.Path, uid: int, gid: int) -> None:
  try:
    os.chown(path, uid, gid)
  except OSError as e:
    # Also root cannot in a sandbox that maps no other user.
    pytest.skip(f'cannot give files to other users: {e.strerror}')
