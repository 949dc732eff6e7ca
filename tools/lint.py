# SPDX-License-Identifier: Apache-2.0
"""Checks or mends how the files of the tree are written.

./bazelw run //tools:lint            # says what is wrong
./bazelw run //tools:lint -- --fix   # mends what can be mended
"""

# bazel: deps=@pypi//clang_format,@pypi//ruff
# bazel: data=@buildifier//:files
from __future__ import annotations

import importlib.util
import os
import pathlib
import platform
import shutil
import subprocess
import sys

_PYTHON = ('.py', '.pyi')
_STARLARK = ('.bzl', 'BUILD', 'WORKSPACE')
_CPP = ('.cc', '.cu', '.cuh', '.h')
# The root of the tree as this file sees it: the sources, or Bazel's links.
_RUNFILES = pathlib.Path(__file__).absolute().parent.parent
_SKIPPED = {'build', 'dist', 'node_modules'}


class MissingProgramError(Exception):
  """A program that lint needs is not on this machine."""


def _program(name: str, *places: pathlib.Path) -> str:
  for place in places:
    if place.exists():
      return str(place.absolute())
  found = shutil.which(name)
  if not found:
    raise MissingProgramError(f'lint needs {name}, found it nowhere')
  return found


def _site(package: str) -> pathlib.Path:
  """Folder that holds an installed package, or one that does not exist."""
  spec = importlib.util.find_spec(package)
  return pathlib.Path(spec.origin).parent.parent if spec else pathlib.Path('-')


def ruff() -> str:
  return _program('ruff', _site('ruff') / '_scripts/ruff')


def clang_format() -> str:
  inside = 'clang_format/data/bin/clang-format'
  return _program('clang-format', _site('clang_format') / inside)


def buildifier() -> str:
  """From npm's package, which Bazel puts beside the tree."""
  machine = {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), '')
  name = f'buildifier/package/buildifier-linux_{machine}'
  return _program('buildifier', _RUNFILES.parent / name)


def files(root: pathlib.Path, endings: tuple[str, ...]) -> list[str]:
  """Relative paths of what ends like that, in the folders of the tree."""
  found = []
  for here, folders, names in os.walk(root):
    folders[:] = [
      f
      for f in folders
      if f not in _SKIPPED and not f.startswith(('.', 'bazel-'))
    ]
    at = pathlib.Path(here).relative_to(root)
    found += [str(at / n) for n in names if n.endswith(endings)]
  return sorted(found)


def check(root: pathlib.Path, name: str, fix: bool) -> bool:
  """Whether the files that `name` of CHECKS looks after are as they must be."""
  program, look, mend, endings = CHECKS[name]
  found = [str(root / f) for f in files(root, endings)]
  command = [program(), *(mend if fix else look), *found]
  return not found or subprocess.run(command, cwd=root).returncode == 0


# {name: (program, how it looks, how it mends, what it looks at)}.
CHECKS = {
  'ruff check': (
    ruff,
    ['check', '--no-cache', '--quiet'],
    ['check', '--no-cache', '--quiet', '--fix'],
    _PYTHON,
  ),
  'ruff format': (
    ruff,
    ['format', '--no-cache', '--quiet', '--diff'],
    ['format', '--no-cache', '--quiet'],
    _PYTHON,
  ),
  'clang-format': (
    clang_format,
    ['--dry-run', '--Werror', '--ferror-limit=3'],
    ['-i'],
    _CPP,
  ),
  'buildifier': (buildifier, ['-mode=diff'], ['-mode=fix'], _STARLARK),
}


def main(argv: list[str]) -> int:
  top = os.environ.get('BUILD_WORKSPACE_DIRECTORY')
  root = pathlib.Path(top) if top else _RUNFILES
  failed = [name for name in CHECKS if not check(root, name, '--fix' in argv)]
  if failed:
    print(f'lint: {", ".join(failed)}; ./bazelw run //tools:lint -- --fix')
  return len(failed)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
