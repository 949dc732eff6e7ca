# SPDX-License-Identifier: Apache-2.0
"""Collects what `gpu_suite` needs on a GPU machine without a network.

    python -m benchmarks.gpu_carry --python=3.12 FOLDER

FOLDER gets the wheels of Pax's dependencies that the machine lacks, of the
versions in the lock, and the extensions with CUDA kernels, built by
`bazelw --config=cuda`. A Python of the machine's version is needed here.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence

from tools.release import builds, locks, resolution

_ROOT = pathlib.Path(__file__).absolute().parents[1]
_LOCK = 'requirements_lock.txt'
# What the machine has, with what these require.
_INSTALLED = frozenset(
  {
    'flax',
    'jax',
    'jaxtyping',
    'matplotlib',
    'optax',
    'orbax-checkpoint',
    'pillow',
    'pytest',
    'sentencepiece',
  }
)
# What tests/conftest.py needs.
_TEST_REQUIREMENTS = ('beartype', 'pytest')
# pip matches the numbers exactly.
_PLATFORMS = tuple(f'manylinux_2_{n}_x86_64' for n in (17, 24, 27, 28, 31, 34))


def missing(
  packages: Sequence[resolution.Package], installed: Iterable[str]
) -> set[str]:
  """Returns the packages that no package of `installed` is or requires."""
  requires = {package.name: package.requires for package in packages}
  present: set[str] = set()
  unvisited = set(installed)
  while unvisited:
    name = unvisited.pop()
    present.add(name)
    unvisited |= requires[name] - present
  return requires.keys() - present


def download_wheels(python: str, folder: pathlib.Path) -> None:
  """Downloads the locked wheels for CPython `python`, such as '3.12'."""
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']
  entries = locks.read(_ROOT, _LOCK)
  packages = resolution.resolve(
    pathlib.Path(f'python{python}'),
    [*project['dependencies'], *_TEST_REQUIREMENTS],
    entries,
  )
  carried = locks.of(entries, missing(packages, _INSTALLED))
  with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
    file.write(locks.text(carried))
    file.flush()
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
    command += ['--require-hashes', '--only-binary=:all:']
    command += ['--implementation=cp', f'--python-version={python}']
    command += [f'--platform={name}' for name in _PLATFORMS]
    command += [f'--dest={folder}', f'--requirement={file.name}']
    subprocess.run(command, check=True)


def build_extensions(python: str, folder: pathlib.Path) -> None:
  """Builds the wheel and unpacks its extensions into `folder`."""
  with tempfile.TemporaryDirectory() as made:
    wheel = builds.cuda_wheel(_ROOT, f'python{python}', pathlib.Path(made))
    with zipfile.ZipFile(wheel) as z:
      names = [name for name in z.namelist() if name.endswith('.so')]
      z.extractall(folder, names)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--python', default='3.12', help='its version there')
  parser.add_argument('folder', type=pathlib.Path)
  args = parser.parse_args()
  args.folder.mkdir(parents=True, exist_ok=True)
  download_wheels(args.python, args.folder)
  build_extensions(args.python, args.folder / 'extensions')


if __name__ == '__main__':
  main()
