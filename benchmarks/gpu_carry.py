# SPDX-License-Identifier: Apache-2.0
"""Collects what `gpu_suite` needs on a GPU machine without a network.

    python -m benchmarks.gpu_carry --python=3.12 FOLDER

The machine has JAX with CUDA, Flax, Optax, Orbax and NumPy. FOLDER gets the
wheels of Pax's other dependencies, of the versions in the lock, and the
extensions with CUDA kernels, built by `bazelw --config=cuda`.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from tools.release import builds, locks

_ROOT = pathlib.Path(__file__).absolute().parents[1]
_LOCK = 'requirements_lock.txt'
_CARRIED = (
  'beartype',
  'fiddle',
  'grain',
  'isal',
  'libcst',
  'tensorboardx',
)
# pip matches the numbers exactly.
_PLATFORMS = tuple(f'manylinux_2_{n}_x86_64' for n in (17, 24, 27, 28, 31, 34))


def download_wheels(python: str, folder: pathlib.Path) -> None:
  """Downloads the locked wheels for CPython `python`, such as '3.12'."""
  entries = locks.of(locks.read(_ROOT, _LOCK), _CARRIED)
  with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
    file.write(locks.text(entries))
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
