# SPDX-License-Identifier: Apache-2.0
"""Prints what python.bzl asks of an interpreter, a fact a line.

The last line identifies it: the version and a digest of all that a program may
load. It is in the key of every action that runs Python, so that an interpreter
patched in place rebuilds.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import sys
import sysconfig
from collections.abc import Iterator

# Not loaded by what Bazel builds: tests, compiled files, packages.
_OMITTED = {
  '__pycache__',
  'dist-packages',
  'ensurepip',
  'idlelib',
  'site-packages',
  'test',
  'tests',
}
_LOADED = {'.py', '.so'}


def standard_library() -> Iterator[pathlib.Path]:
  """Yields the modules of the standard library, always in the same order."""
  for root, folders, names in os.walk(sysconfig.get_path('stdlib')):
    folders[:] = sorted(set(folders) - _OMITTED)
    for name in sorted(names):
      if os.path.splitext(name)[1] in _LOADED:
        yield pathlib.Path(root, name)


def program() -> list[pathlib.Path]:
  """Returns the interpreter and the shared libraries that it has loaded."""
  with open('/proc/self/maps', encoding='utf-8') as f:
    paths = {line.split(maxsplit=5)[-1].strip() for line in f}
  found = {path for path in paths if '.so' in os.path.basename(path)}
  exe = os.path.realpath(sys.executable)
  return [pathlib.Path(path) for path in sorted({exe, *found})]


def digest(files: list[pathlib.Path]) -> str:
  total = hashlib.sha256()
  for path in files:
    inner = hashlib.sha256(path.read_bytes()).hexdigest()
    total.update(f'{path} {inner}\n'.encode())
  return total.hexdigest()


def check_version() -> None:
  """Exits with a message if no locked package is for this version."""
  major, minor, _, level, _ = sys.version_info
  # The rules of packages take 3.11.0rc1 for older than 3.11.
  if (major, minor) < (3, 11) or level != 'final':
    version = sys.version.split()[0]
    wanted = 'a Python 3.11 to 3.14'
    sys.exit(f'its version is {version}; set PAX_PYTHON to {wanted}')


def main() -> None:
  check_version()
  version = ' '.join(sys.version.split())
  print(os.path.realpath(sys.executable))
  print(sysconfig.get_path('include'))
  print('{}.{}'.format(*sys.version_info))
  print(sysconfig.get_config_var('EXT_SUFFIX'))
  print(version, digest([*program(), *standard_library()]))


if __name__ == '__main__':
  main()
