# SPDX-License-Identifier: Apache-2.0
"""Checks or fixes the format of the files of the repository.

./bazelw run //tools:lint            # prints violations
./bazelw run //tools:lint -- --fix   # fixes violations
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
_STARLARK = ('.bzl', 'BUILD', 'MODULE.bazel', 'WORKSPACE')
_CPP = ('.cc', '.cu', '.cuh', '.h')
# Bazel 9 has no rules of Python and C++ of its own: BUILD files load them.
_LOADS = '-warnings=native-py,native-cc-binary,native-cc-library,native-cc-test'
# Root of the sources, or of Bazel's runfiles.
_RUNFILES = pathlib.Path(__file__).absolute().parent.parent
_SKIPPED = {'build', 'dist', 'node_modules'}


class MissingProgramError(Exception):
  """A program that lint needs is not installed."""


def _program(name: str, *places: pathlib.Path) -> str:
  for place in places:
    if place.exists():
      return str(place.absolute())
  path = shutil.which(name)
  if not path:
    raise MissingProgramError(f'lint needs the program {name}; install it')
  return path


def _site(package: str) -> pathlib.Path:
  """Returns the folder of an installed package, or one that does not exist."""
  spec = importlib.util.find_spec(package)
  origin = spec.origin if spec else None
  return pathlib.Path(origin).parent.parent if origin else pathlib.Path('-')


def ruff() -> str:
  return _program('ruff', _site('ruff') / '_scripts/ruff')


def clang_format() -> str:
  inside = 'clang_format/data/bin/clang-format'
  return _program('clang-format', _site('clang_format') / inside)


def buildifier() -> str:
  """Returns the binary of the npm package in Bazel's external repositories."""
  machine = {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), '')
  # With MODULE.bazel, the repository's name has a prefix.
  name = f'*buildifier/package/buildifier-linux_{machine}'
  return _program('buildifier', *_RUNFILES.parent.glob(name))


def files(root: pathlib.Path, endings: tuple[str, ...]) -> list[str]:
  """Returns relative paths of files with these endings."""
  paths = []
  for folder, folders, names in os.walk(root):
    folders[:] = [
      f
      for f in folders
      if f not in _SKIPPED and not f.startswith(('.', 'bazel-'))
    ]
    relative = pathlib.Path(folder).relative_to(root)
    paths += [str(relative / n) for n in names if n.endswith(endings)]
  return sorted(paths)


def check(root: pathlib.Path, name: str, fix: bool) -> bool:
  """Runs the check `name` of CHECKS; returns whether it passes."""
  program, check_args, fix_args, endings = CHECKS[name]
  paths = [str(root / f) for f in files(root, endings)]
  command = [program(), *(fix_args if fix else check_args), *paths]
  return not paths or subprocess.run(command, cwd=root).returncode == 0


# {name: (program, arguments to check, arguments to fix, file endings)}.
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
  'buildifier': (
    buildifier,
    ['-mode=diff', '-lint=warn', _LOADS],
    ['-mode=fix', '-lint=fix', _LOADS],
    _STARLARK,
  ),
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
