# SPDX-License-Identifier: Apache-2.0
"""Writes a .par file: a self-contained program that requires only glibc.

launcher.cc describes the format. The files unpack to a Python installation:
bin/python3, lib/*.so, lib/pythonX.Y/{,site-packages/}.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable

# {path in the unpacked folder: source file}.
Files = dict[str, pathlib.Path]

_VERSION = f'python{sys.version_info.major}.{sys.version_info.minor}'
_MAGIC = b'PAXPAR1\n'
_EPOCH = (1980, 1, 1, 0, 0, 0)
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
_TESTED = ('numpy', 'scipy')
# The interpreters of some distributions search other folders.
_SITECUSTOMIZE = '''"""Adds site-packages next to the standard library."""

import os
import sys

folder = os.path.join(os.path.dirname(os.__file__), 'site-packages')
if folder not in sys.path:
  sys.path.append(folder)
'''
# Libraries of glibc, which the target machine provides.
_GLIBC = {
  'ld-linux-x86-64.so.2',
  'libanl.so.1',
  'libc.so.6',
  'libdl.so.2',
  'libm.so.6',
  'libmvec.so.1',
  'libpthread.so.0',
  'libresolv.so.2',
  'librt.so.1',
  'libutil.so.1',
}


def standard_library(root: pathlib.Path) -> Files:
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
    invalidation_mode=compileall.py_compile.PycInvalidationMode.UNCHECKED_HASH,
  )
  files = {str(p.relative_to(root)): p for p in lib.rglob('*') if p.is_file()}
  python = pathlib.Path(os.path.realpath(sys.executable))
  return {'bin/python3': python, **files}


def is_unused(inner: pathlib.PurePath) -> bool:
  """Returns whether a file of a wheel is a program or a test."""
  top, *rest = inner.parts
  return top == '_scripts' or (top in _TESTED and 'tests' in rest[:-1])


def packages(runfiles: pathlib.Path) -> Files:
  """Returns our files and those of all wheels, in one site-packages."""
  files: Files = {}
  own = runfiles / 'pax'
  for folder in (own, *sorted(runfiles.glob('*/*/site'))):
    for file in folder.rglob('*'):
      inner = file.relative_to(folder)
      if not file.is_file() or is_unused(inner):
        continue
      dest = f'lib/{_VERSION}/site-packages/{inner}'
      old = files.setdefault(dest, file)
      if old is not file and old.read_bytes() != file.read_bytes():
        raise SystemExit(f'make_par: {file} would replace {old}')
  return files


def needed(paths: Iterable[pathlib.Path]) -> dict[str, str]:
  """Returns {name: path} of the shared libraries of files, by ldd."""
  text = subprocess.run(
    ['ldd', *map(str, paths)], capture_output=True, text=True, check=False
  ).stdout
  rows = [line.split() for line in text.splitlines() if ' => /' in line]
  return {row[0]: row[2] for row in rows}


def shared_libraries(files: Files) -> Files:
  """Returns shared libraries from outside the archive, without glibc."""
  have = {pathlib.PurePath(name).name for name in files} | _GLIBC
  programs = [
    path
    for name, path in files.items()
    if name == 'bin/python3' or '.so' in pathlib.PurePath(name).suffixes
  ]
  return {
    f'lib/{library}': pathlib.Path(os.path.realpath(path))
    for library, path in needed(programs).items()
    if library not in have
  }


def is_executable(path: pathlib.Path) -> bool:
  return bool(path.stat().st_mode & stat.S_IXUSR)


def digest(files: Files) -> str:
  """Returns a hash over names, permissions and contents."""
  total = hashlib.sha256()
  for name, path in sorted(files.items()):
    inner = hashlib.sha256(path.read_bytes()).hexdigest()
    total.update(f'{name} {is_executable(path)} {inner}\n'.encode())
  return total.hexdigest()


def in_first_stage(name: str) -> bool:
  return '/site-packages/' not in name


def write_tar(out, files: Files) -> None:
  with tarfile.open(fileobj=out, mode='w', format=tarfile.USTAR_FORMAT) as tar:
    for name, path in sorted(files.items()):
      info = tarfile.TarInfo(name)
      info.size = path.stat().st_size
      info.mode = 0o755 if is_executable(path) else 0o644
      with path.open('rb') as f:
        tar.addfile(info, f)


def write_zip(out, files: Files, comment: bytes) -> None:
  with zipfile.ZipFile(out, 'w') as z:
    for name, path in sorted(files.items()):
      info = zipfile.ZipInfo(name, _EPOCH)
      mode = 0o755 if is_executable(path) else 0o644
      info.external_attr = (stat.S_IFREG | mode) << 16
      info.compress_type = zipfile.ZIP_DEFLATED
      z.writestr(info, path.read_bytes(), compresslevel=1)
    z.comment = comment


def write_par(out: str, launcher: str, files: Files) -> None:
  """Writes the launcher, the tar of the first stage, the zip of the rest."""
  first = {n: p for n, p in files.items() if in_first_stage(n)}
  rest = {n: p for n, p in files.items() if not in_first_stage(n)}
  with open(out, 'wb') as f:
    f.write(pathlib.Path(launcher).read_bytes())
    start = f.tell()
    write_tar(f, first)
    size = f.tell() - start
    numbers = b'%20d%20d' % (start, size)
    write_zip(f, rest, _MAGIC + digest(files).encode() + numbers)
  os.chmod(out, 0o755)


def main() -> None:
  parser = argparse.ArgumentParser()
  for name in ('out', 'launcher', 'unpack', 'main', 'runfiles'):
    parser.add_argument(f'--{name}', required=True)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    files = {
      'main.py': pathlib.Path(args.main),
      'unpack.py': pathlib.Path(args.unpack),
      **standard_library(pathlib.Path(folder).resolve()),
      **packages(pathlib.Path(args.runfiles)),
    }
    write_par(args.out, args.launcher, files | shared_libraries(files))


if __name__ == '__main__':
  main()
