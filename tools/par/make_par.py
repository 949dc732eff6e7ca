# SPDX-License-Identifier: Apache-2.0
"""Writes a .par file: one program that needs nothing but a kernel and glibc.

Its parts are described in launcher.cc. Files unpack to an ordinary Python
installation: bin/python3, lib/*.so, lib/pythonX.Y/{,site-packages/}.
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

_VERSION = f'python{sys.version_info.major}.{sys.version_info.minor}'
_MAGIC = b'PAXPAR1\n'
_EPOCH = (1980, 1, 1, 0, 0, 0)
# Of the standard library: tests, and what needs a screen or other files.
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
# Some distributions' interpreters look for packages in other folders.
_SITECUSTOMIZE = '''"""Adds the packages beside the standard library."""

import os
import sys

folder = os.path.join(os.path.dirname(os.__file__), 'site-packages')
if folder not in sys.path:
  sys.path.append(folder)
'''
# What glibc itself consists of, never carried along.
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


def copy_standard_library(root: pathlib.Path) -> None:
  """Copies the interpreter that runs this, and its library."""
  lib = root / 'lib' / _VERSION
  source = pathlib.Path(sysconfig.get_path('stdlib'))

  def unused(folder: str, names: list[str]) -> set[str]:
    return {
      n
      for n in names
      if n in _UNUSED or n.startswith(_UNUSED_STARTS) or n.endswith('.a')
    }

  shutil.copytree(source, lib, ignore=unused, symlinks=False)
  (lib / 'sitecustomize.py').unlink(missing_ok=True)
  (lib / 'sitecustomize.py').write_text(_SITECUSTOMIZE)
  (root / 'bin').mkdir()
  shutil.copy2(os.path.realpath(sys.executable), root / 'bin/python3')
  compileall.compile_dir(
    lib,
    quiet=2,
    stripdir=str(root),
    invalidation_mode=compileall.py_compile.PycInvalidationMode.UNCHECKED_HASH,
  )


def copy_file(source: pathlib.Path, dest: pathlib.Path) -> None:
  """Copies one file; two that differ may not claim one place."""
  if dest.exists():
    if dest.read_bytes() != source.read_bytes():
      raise SystemExit(f'make_par: {source} would replace {dest}')
    return
  dest.parent.mkdir(parents=True, exist_ok=True)
  shutil.copy2(source, dest)


def is_unused(inner: pathlib.PurePath) -> bool:
  """Whether a wheel's file is a program, or a test of a big library."""
  top, *rest = inner.parts
  return top == '_scripts' or (top in _TESTED and 'tests' in rest[:-1])


def copy_runfiles(runfiles: pathlib.Path, site: pathlib.Path) -> None:
  """Copies our own files, and those of all wheels, to one site-packages."""
  own = runfiles / 'pax'
  wheels = sorted(runfiles.glob('*/*/site'))
  for folder in (own, *wheels):
    for file in folder.rglob('*'):
      inner = file.relative_to(folder)
      if file.is_file() and not is_unused(inner):
        copy_file(file, site / inner)


def needed(path: pathlib.Path) -> dict[str, str]:
  """{name: path} of the shared libraries that a file loads, as ldd says."""
  text = subprocess.run(
    ['ldd', str(path)], capture_output=True, text=True, check=False
  ).stdout
  rows = [line.split() for line in text.splitlines() if ' => /' in line]
  return {row[0]: row[2] for row in rows}


def copy_shared_libraries(root: pathlib.Path) -> None:
  """Copies to lib/ what the programs load from outside, glibc apart."""
  programs = [root / 'bin/python3', *root.rglob('*.so'), *root.rglob('*.so.*')]
  for program in programs:
    for name, path in needed(program).items():
      outside = not path.startswith(str(root))
      if outside and name not in _GLIBC and not (root / 'lib' / name).exists():
        shutil.copy2(os.path.realpath(path), root / 'lib' / name)


def tree_files(root: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
  return sorted(
    (str(path.relative_to(root)), path)
    for path in root.rglob('*')
    if path.is_file()
  )


def is_executable(path: pathlib.Path) -> bool:
  return bool(path.stat().st_mode & stat.S_IXUSR)


def digest(files: list[tuple[str, pathlib.Path]]) -> str:
  """One hash over names, permissions and contents."""
  total = hashlib.sha256()
  for name, path in files:
    inner = hashlib.sha256(path.read_bytes()).hexdigest()
    total.update(f'{name} {is_executable(path)} {inner}\n'.encode())
  return total.hexdigest()


def in_first_stage(name: str) -> bool:
  return '/site-packages/' not in name


def write_tar(out, files: list[tuple[str, pathlib.Path]]) -> None:
  with tarfile.open(fileobj=out, mode='w', format=tarfile.USTAR_FORMAT) as tar:
    for name, path in files:
      info = tarfile.TarInfo(name)
      info.size = path.stat().st_size
      info.mode = 0o755 if is_executable(path) else 0o644
      with path.open('rb') as f:
        tar.addfile(info, f)


def write_zip(
  out, files: list[tuple[str, pathlib.Path]], comment: bytes
) -> None:
  with zipfile.ZipFile(out, 'w') as z:
    for name, path in files:
      info = zipfile.ZipInfo(name, _EPOCH)
      mode = 0o755 if is_executable(path) else 0o644
      info.external_attr = (stat.S_IFREG | mode) << 16
      info.compress_type = zipfile.ZIP_DEFLATED
      z.writestr(info, path.read_bytes(), compresslevel=1)
    z.comment = comment


def write_par(out: str, launcher: str, root: pathlib.Path) -> None:
  files = tree_files(root)
  first = [f for f in files if in_first_stage(f[0])]
  rest = [f for f in files if not in_first_stage(f[0])]
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
    root = pathlib.Path(folder).resolve()
    copy_standard_library(root)
    site = root / 'lib' / _VERSION / 'site-packages'
    copy_runfiles(pathlib.Path(args.runfiles), site)
    shutil.copyfile(args.unpack, root / 'unpack.py')
    shutil.copyfile(args.main, root / 'main.py')
    copy_shared_libraries(root)
    write_par(args.out, args.launcher, root)


if __name__ == '__main__':
  main()
