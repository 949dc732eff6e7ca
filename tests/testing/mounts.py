# SPDX-License-Identifier: Apache-2.0
"""File systems of tests, mounted by root."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator

import pytest


def _can_mount() -> bool:
  if os.geteuid():
    return False
  with tempfile.TemporaryDirectory() as folder:
    if _run('mount', '-t', 'tmpfs', 'tmpfs', folder):
      return False
    _run('umount', folder)
  return True


def _run(*words: str) -> int:
  try:
    return subprocess.run(words, capture_output=True, check=False).returncode
  except FileNotFoundError:
    return 127


needs_root = pytest.mark.skipif(
  not _can_mount(), reason='mounting a file system needs root'
)


@contextlib.contextmanager
def tmpfs(path: pathlib.Path, size: str) -> Iterator[None]:
  """Mounts an empty file system of a size, such as '2m', in memory."""
  path.mkdir(parents=True, exist_ok=True)
  _check('mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(path))
  try:
    yield
  finally:
    _run('umount', '--lazy', str(path))


def resize(path: pathlib.Path, size: str) -> None:
  """Changes the size of a `tmpfs`."""
  _check('mount', '-o', f'remount,size={size}', str(path))


def make_read_only(path: pathlib.Path) -> None:
  """Makes a directory read-only, except its open files; undone by `unmount`."""
  bind(path, path)
  _check('mount', '-o', 'remount,ro,bind', str(path))


def bind(source: pathlib.Path, target: pathlib.Path) -> None:
  """Makes a directory appear at another path too."""
  target.mkdir(parents=True, exist_ok=True)
  _check('mount', '--bind', str(source), str(target))


def unmount(path: pathlib.Path) -> None:
  """Detaches a file system, even with open files."""
  _check('umount', '--lazy', str(path))


def _check(*words: str) -> None:
  subprocess.run(words, check=True, capture_output=True)
