# SPDX-License-Identifier: Apache-2.0
"""Tar files of this tree, also with Python 3.11.2, which Debian 12 has."""

from __future__ import annotations

import copy
import gzip
import pathlib
import tarfile

# 1980-01-01, the time of all files, as in wheels of Bazel.
EPOCH = 315532800


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> None:
  """Extracts a tar file that this tree contains or that its tools wrote."""
  with tarfile.open(archive) as tar:
    # Python 3.11.4 has filters; 3.12 warns of their absence.
    tar.extraction_filter = getattr(tarfile, 'data_filter', None)
    tar.extractall(folder)


def repack(archive: pathlib.Path, path: pathlib.Path) -> None:
  """Copies a .tar.gz without its times, owners and order of files.

  Args:
    archive: the file to copy.
    path: of the copy.
  """
  with (
    tarfile.open(archive) as tar,
    path.open('wb') as file,
    gzip.GzipFile('', 'wb', fileobj=file, mtime=EPOCH) as packed,
    tarfile.open(fileobj=packed, mode='w', format=tarfile.PAX_FORMAT) as made,
  ):
    for member in sorted(tar, key=lambda member: member.name):
      content = tar.extractfile(member) if member.isfile() else None
      made.addfile(_without_origin(member), content)


def _without_origin(member: tarfile.TarInfo) -> tarfile.TarInfo:
  result = copy.copy(member)
  result.mtime = EPOCH
  result.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
  result.uid = result.gid = 0
  result.uname = result.gname = ''
  # The time again, with fractions of a second; long names are added anew.
  result.pax_headers = {}
  return result
