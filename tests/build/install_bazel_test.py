# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=//tools/bazel:all_files
"""The installation of Bazel refuses packages that its lock does not list."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest

_SCRIPT = pathlib.Path('tools/bazel/install_7.sh').absolute()
_LOCK = pathlib.Path('tools/bazel/install_7.lock')
# In place of apt-get: "downloads" a file for each package.
_APT = """#!/bin/sh
test "$2" != download || {download}
"""

pytestmark = pytest.mark.skipif(
  not shutil.which('dpkg'), reason='the script runs on Debian and Ubuntu'
)


def _install(
  folder: pathlib.Path, download: str, **env: str
) -> subprocess.CompletedProcess[str]:
  apt = folder / 'bin/apt-get'
  apt.parent.mkdir()
  apt.write_text(_APT.format(download=download))
  apt.chmod(0o755)
  return subprocess.run(
    ['bash', _SCRIPT, folder / 'bazel'],
    env={'PATH': f'{apt.parent}:/usr/bin:/bin', 'BAZELW_MIRROR': 'none'} | env,
    capture_output=True,
    text=True,
    check=False,
  )


def test_the_lock_has_a_version_and_a_hash_of_each_package():
  lines = _LOCK.read_text().splitlines()
  names = [line.split('=')[0] for line in lines]
  assert len(names) == len(set(names))
  assert 'bazel-bootstrap' in names
  for line in lines:
    assert re.fullmatch(r'[a-z0-9.+-]+=\S+ [0-9a-f]{64}', line)


def test_other_bytes_are_refused(tmp_path):
  done = _install(tmp_path, 'for p in $@; do echo bad > $p.deb; done')
  assert done.returncode == 4, done.stderr
  assert 'the downloaded packages are not those of' in done.stderr
  assert not (tmp_path / 'bazel').exists()


def test_a_lock_that_is_too_old(tmp_path):
  done = _install(tmp_path, 'exit 100', BAZELW_LOCKED='1')
  assert done.returncode == 4, done.stderr
  assert 'run install_7.sh --lock' in done.stderr


def test_it_says_what_the_machine_lacks(tmp_path):
  (tmp_path / 'bin').mkdir()
  for name in ('awk', 'bash', 'dirname', 'realpath', 'sed', 'uname'):
    (tmp_path / 'bin' / name).symlink_to(shutil.which(name))
  done = subprocess.run(
    ['bash', _SCRIPT, tmp_path / 'bazel'],
    env={'PATH': str(tmp_path / 'bin'), 'BAZELW_MIRROR': 'none'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 3
  for name in ('apt-get', 'dpkg', 'python3'):
    assert f'lacks: {name}\n' in done.stderr
