# SPDX-License-Identifier: Apache-2.0
"""Builds of copies of this tree by setuptools, without network."""

# bazel: data=//:all_files
# bazel: deps=@pypi//setuptools
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

_FOLDERS = ('csrc', 'pax', 'paxml', 'praxis', 'third_party/licenses')
_FILES = ('LICENSE', 'NOTICE', 'README.md', 'pyproject.toml', 'setup.py')


def copy_sources(folder: pathlib.Path) -> None:
  """Copies the files that a build of the distribution reads."""
  ignored = shutil.ignore_patterns('__pycache__', '*.so')
  for name in _FOLDERS:
    shutil.copytree(name, folder / name, ignore=ignored)
  for name in _FILES:
    shutil.copy(name, folder)


def build(
  kind: str, source: pathlib.Path, dest: pathlib.Path, **env: str
) -> subprocess.CompletedProcess[str]:
  """Runs the build backend in `source`; the result has its output.

  Args:
    kind: sdist or wheel.
    source: a folder with a pyproject.toml.
    dest: receives the archive.
    **env: further environment variables.
  """
  code = f'from setuptools import build_meta as b; b.build_{kind}("{dest}")'
  path = {'PYTHONPATH': os.pathsep.join(sys.path)}
  return subprocess.run(
    [sys.executable, '-c', code],
    cwd=source,
    env=os.environ | path | env,
    capture_output=True,
    text=True,
    check=False,
  )
