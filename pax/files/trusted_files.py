# SPDX-License-Identifier: Apache-2.0
"""Refuses files that run code when they are read and that others can write.

A trusted file belongs to the current user or to root, and no other user can
write it or its directory (unless that is sticky, as /tmp is). Directories above
do not count: through them others can only put a file of their own in its place.
"""

from __future__ import annotations

import grp
import os
import pathlib
import pwd
import stat

PathLike = str | os.PathLike[str]


class UntrustedFileError(ValueError):
  """Another user can write a file that runs code when it is read."""


def read_bytes(path: PathLike, *, trust_foreign_files: bool = False) -> bytes:
  """Returns the content of a file that runs code.

  Args:
    path: the file; the target of a symbolic link counts.
    trust_foreign_files: whether to read it even if others can write it.

  Raises:
    UntrustedFileError: it is not trusted.
    OSError: it cannot be read.
  """
  path = pathlib.Path(path)
  with path.open('rb') as file:
    if not trust_foreign_files:
      # The open file: its name may be another file's by now.
      _check(path, os.fstat(file.fileno()))
      check_directory(path.resolve().parent)
    return file.read()


def check_directory(path: PathLike) -> None:
  """Checks that no other user can replace files of a directory.

  Raises:
    UntrustedFileError: another user can.
    OSError: there is no such directory.
  """
  path = pathlib.Path(path)
  status = path.stat()
  _check(path, status, is_sticky=bool(status.st_mode & stat.S_ISVTX))


def _check(
  path: pathlib.Path, status: os.stat_result, is_sticky: bool = False
) -> None:
  if status.st_uid not in (os.geteuid(), 0):
    reason = f'belongs to {_user_name(status.st_uid)}'
  elif status.st_mode & stat.S_IWOTH and not is_sticky:
    reason = 'can be written by all users'
  elif (
    status.st_mode & stat.S_IWGRP
    and not is_sticky
    and not _is_private_group(status.st_gid)
  ):
    reason = f'can be written by the group {_group_name(status.st_gid)}'
  else:
    return
  raise UntrustedFileError(
    f'{path} {reason}, and what it has would run as code of'
    f' {_user_name(os.geteuid())}; copy it if you trust it, or pass'
    ' --trust_foreign_files'
  )


def _is_private_group(gid: int) -> bool:
  """Whether the group is that of the current user alone, by convention."""
  try:
    group = grp.getgrgid(gid)
    user = pwd.getpwuid(os.geteuid())
  except KeyError:
    return False
  return (
    group.gr_name == user.pw_name
    and user.pw_gid == gid
    and set(group.gr_mem) <= {user.pw_name}
  )


def _user_name(uid: int) -> str:
  try:
    return f'user {pwd.getpwuid(uid).pw_name}'
  except KeyError:
    return f'user {uid}'


def _group_name(gid: int) -> str:
  try:
    return grp.getgrgid(gid).gr_name
  except KeyError:
    return str(gid)
