# SPDX-License-Identifier: Apache-2.0
"""Writes a .par file; launcher.cc and unpack.py read it."""

from __future__ import annotations

import hashlib
import io
import os
import pathlib
import stat
import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from tools.par import unpack

# {path in the unpacked folder: source file}.
Files = dict[str, pathlib.Path]

_MAGIC = b'PAXPAR1\n'
# Bytes of a frame before compression: frames unpack in parallel.
_FRAME = 64 << 20
# Level 15 takes seven times as long for a file that is 2 % smaller.
_LEVEL = 9


def is_executable(path: pathlib.Path) -> bool:
  return bool(path.stat().st_mode & stat.S_IXUSR)


def digest(files: Files) -> str:
  """Returns a hash over names, permissions and contents."""
  total = hashlib.sha256()
  for name, path in sorted(files.items()):
    with path.open('rb') as f:
      inner = hashlib.file_digest(f, 'sha256').hexdigest()
    total.update(f'{name} {is_executable(path)} {inner}\n'.encode())
  return total.hexdigest()


def write_tar(
  out: BinaryIO | io.BufferedIOBase,
  names: Iterable[str],
  files: Files,
  kind: int,
) -> None:
  """Writes a tar of a format that its reader knows."""
  with tarfile.open(fileobj=out, mode='w', format=kind) as tar:
    for name in names:
      info = tarfile.TarInfo(name)
      info.size = files[name].stat().st_size
      info.mode = 0o755 if is_executable(files[name]) else 0o644
      with files[name].open('rb') as f:
        tar.addfile(info, f)


def frames(files: Files) -> Iterator[list[str]]:
  """Yields the names of each frame; files of one kind are together."""
  frame: list[str] = []
  size = 0
  for name in sorted(files, key=lambda n: (pathlib.PurePath(n).suffix, n)):
    size += files[name].stat().st_size
    if frame and size > _FRAME:
      yield frame
      frame, size = [], files[name].stat().st_size
    frame.append(name)
  if frame:
    yield frame


def write_frames(out: BinaryIO, files: Files) -> None:
  """Writes what unpack.py reads; the number of CPUs does not change it."""
  parameter = unpack.zstd.CompressionParameter
  options: dict[int, int] = {
    parameter.compression_level: _LEVEL,
    parameter.nb_workers: os.cpu_count() or 1,
    parameter.checksum_flag: 1,
  }
  for names in frames(files):
    data = io.BytesIO()
    with unpack.zstd.ZstdFile(data, 'w', options=options) as z:
      write_tar(z, names, files, tarfile.GNU_FORMAT)
    out.write(b'%*d' % (unpack.DIGITS, data.tell()))
    out.write(data.getbuffer())
  out.write(b'%*d' % (unpack.DIGITS, 0))


def write_par(
  out: str, launcher: pathlib.Path, first: Files, rest: Files
) -> None:
  """Writes the launcher, the tar of the first stage, the frames of the rest."""
  with open(out, 'wb') as f:
    f.write(launcher.read_bytes())
    start = f.tell()
    write_tar(f, sorted(first), first, tarfile.USTAR_FORMAT)
    size = f.tell() - start
    write_frames(f, rest)
    f.write(_MAGIC + digest(first | rest).encode())
    f.write(b'%20d%20d' % (start, size))
  os.chmod(out, 0o755)
