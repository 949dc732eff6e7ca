# SPDX-License-Identifier: Apache-2.0
"""Makes a .par file: a self-contained program that requires only glibc.

launcher.cc describes the format. The files unpack to a Python installation:
bin/python3, lib/*.so, lib/pythonX.Y/{,site-packages/}.
"""

from __future__ import annotations

import argparse
import compileall
import os
import pathlib
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from tools.par import archive, shared_objects
from tools.par import unpack as unpack_stage

_VERSION = f'python{sys.version_info.major}.{sys.version_info.minor}'
_SITE = f'lib/{_VERSION}/site-packages'
# Modules of the standard library that are omitted: tests and GUIs.
_UNUSED = {
  '__pycache__',
  'dist-packages',
  'ensurepip',
  'idlelib',
  'lib2to3',
  'site-packages',
  'test',
  'tests',
  'tkinter',
  'turtledemo',
}
_UNUSED_STARTS = ('config-', '_test', '_tkinter', '_ctypes_test', 'nis.')
# What compilers and type checkers read.
_SOURCES = set('.a .c .cc .cpp .h .hpp .inc .pxd .pyi .pyx'.split())
# The interpreters of some distributions search other folders.
_SITECUSTOMIZE = '''"""Adds site-packages next to the standard library."""

import os
import sys

folder = os.path.join(os.path.dirname(os.__file__), 'site-packages')
if folder not in sys.path:
  sys.path.append(folder)
'''
# Prints the files of the modules that a program imports.
_TRACE = """
import runpy, sys
sys.path.append(sys.argv[1])
sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name='__main__')
for name, module in list(sys.modules.items()):
  print(getattr(module, '__file__', None) or '')
  # A module may replace itself by another, as collections.abc of Python 3.13.
  parent, _, own = name.rpartition('.')
  for folder in getattr(sys.modules.get(parent), '__path__', ()):
    print(f'{folder}/{own}.py')
"""


def standard_library(root: pathlib.Path) -> archive.Files:
  """Returns files of this interpreter; compiles its modules into `root`."""
  lib = root / 'lib' / _VERSION

  def unused(folder: str, names: list[str]) -> set[str]:
    return {
      n
      for n in names
      if n in _UNUSED or n.startswith(_UNUSED_STARTS) or n.endswith('.a')
    }

  shutil.copytree(sysconfig.get_path('stdlib'), lib, ignore=unused)
  (lib / 'sitecustomize.py').unlink(missing_ok=True)
  (lib / 'sitecustomize.py').write_text(_SITECUSTOMIZE)
  compileall.compile_dir(
    lib,
    quiet=2,
    stripdir=str(root),
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
  )
  files = {str(p.relative_to(root)): p for p in lib.rglob('*') if p.is_file()}
  python = pathlib.Path(os.path.realpath(sys.executable))
  return {shared_objects.PROGRAM: python, **files}


def is_unused(inner: pathlib.PurePath) -> bool:
  """Returns whether a file of a wheel is a program, a test or a source."""
  module = inner.name.partition('.')[0]
  return (
    inner.parts[0] == '_scripts'
    or inner.suffix in _SOURCES
    or 'tests' in inner.parts[:-1]
    or (module.endswith('_test') and inner.suffix in ('.py', '.pyc'))
  )


def imported(own: pathlib.Path) -> set[str]:
  """Returns the top-level names that the modules in a folder import."""
  pattern = re.compile(r'(?m)^ *(?:import|from) +(\w+)')
  texts = (p.read_text(encoding='utf-8') for p in own.rglob('*.py'))
  return {name for text in texts for name in pattern.findall(text)}


def left_out(own: pathlib.Path, privacy: bool) -> set[str]:
  """Returns the folders of packages that few programs use.

  JAX requires SciPy, but imports it only in `jax.experimental.sparse.linalg`,
  and for windows by name in `jax.scipy.signal`. dp-accounting requires it, too.

  Args:
    own: the folder of our modules.
    privacy: whether the program computes the epsilon of DP-SGD.
  """
  if privacy:
    return set()
  scipy = set() if 'scipy' in imported(own) else {'scipy', 'scipy.libs'}
  return {'dp_accounting', *scipy}


def packages(own: pathlib.Path, privacy: bool) -> archive.Files:
  """Returns our files and those of all wheels, in one site-packages.

  Args:
    own: the folder of our modules in the runfiles of the program.
    privacy: whether the program computes the epsilon of DP-SGD.
  """
  files: archive.Files = {}
  unused = left_out(own, privacy)
  for folder in (own, *sorted(own.parent.glob('*/*/site'))):
    for file in folder.rglob('*'):
      inner = file.relative_to(folder)
      if not file.is_file() or is_unused(inner) or inner.parts[0] in unused:
        continue
      old = files.setdefault(f'{_SITE}/{inner}', file)
      if old is not file and old.read_bytes() != file.read_bytes():
        raise SystemExit(f'make_par: {file} would replace {old}')
  return files


def second_stage() -> tuple[archive.Files, set[str]]:
  """Returns the files of unpack.py, and the names of those that it imports."""
  unpack = pathlib.Path(unpack_stage.__file__)
  stdlib = pathlib.Path(sysconfig.get_path('stdlib'))
  # The folder that is searched for it; the standard library from 3.14 on.
  zstd = pathlib.Path(unpack_stage.zstd.__file__).parents[2]
  with tempfile.TemporaryDirectory() as folder:
    sample = pathlib.Path(folder, 'sample')
    with sample.open('wb') as f:
      archive.write_frames(f, {'a/file': unpack})
    out = subprocess.check_output(
      [sys.executable, '-I', '-c', _TRACE, zstd, unpack, sample, '0', folder],
      text=True,
    )
  roots = {zstd: _SITE, stdlib: f'lib/{_VERSION}'}
  names = {'unpack.py'}
  for path in map(pathlib.Path, filter(None, out.splitlines())):
    for root, dest in roots.items():
      if path.is_relative_to(root):
        names.add(f'{dest}/{path.relative_to(root)}')
  files = {'unpack.py': unpack}
  for path in zstd.rglob('*') if zstd != stdlib else ():
    inner = path.relative_to(zstd)
    if path.is_file() and not is_unused(inner):
      files[f'{_SITE}/{inner}'] = path
  return files, names


def first_stage(files: archive.Files, imports: set[str]) -> set[str]:
  """Returns the names of the files without which unpack.py cannot run.

  Args:
    files: of the archive, without shared libraries from outside of it.
    imports: names of what unpack.py imports.
  """
  always = {shared_objects.PROGRAM, f'lib/{_VERSION}/sitecustomize.py'}
  codecs = f'lib/{_VERSION}/encodings/'
  names = {n for n in files if n in imports | always or n.startswith(codecs)}
  return names | set(shared_objects.libraries({n: files[n] for n in names}))


def main() -> None:
  parser = argparse.ArgumentParser()
  for name in ('out', 'launcher', 'strip', 'main', 'own'):
    parser.add_argument(f'--{name}', required=True)
  parser.add_argument('--privacy', action='store_true')
  args = parser.parse_args()
  unpack, imports = second_stage()
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder).resolve()
    files = {
      'main.py': pathlib.Path(args.main),
      **unpack,
      **standard_library(root / 'python'),
      **packages(pathlib.Path(args.own), args.privacy),
    }
    names = first_stage(files, imports)
    files |= shared_objects.libraries(files)
    own = {n: p for n, p in files.items() if not n.startswith(f'{_SITE}/')}
    files |= shared_objects.stripped(own, root / 'stripped', args.strip)
    files = shared_objects.with_rpaths(files, root)
    first = {n: p for n, p in files.items() if n in names}
    rest = {n: p for n, p in files.items() if n not in names}
    archive.write_par(args.out, pathlib.Path(args.launcher), first, rest)


if __name__ == '__main__':
  main()
