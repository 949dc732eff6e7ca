# SPDX-License-Identifier: Apache-2.0
"""Second stage of a .par file: unpacks its frames with its own interpreter.

unpack.py FILE.par OFFSET FOLDER

archive.py writes the frames: each is its size in 20 digits and a tar compressed
by zstd; a size of 0 ends them.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from concurrent.futures import thread

if sys.version_info >= (3, 14):
  from compression import zstd
else:
  from backports import zstd

DIGITS = 20


def frames(path: str, offset: int) -> list[tuple[int, int]]:
  """Returns (offset, size) of the frames, the largest first."""
  found: list[tuple[int, int]] = []
  with open(path, 'rb') as f:
    while True:
      f.seek(offset)
      size = int(f.read(DIGITS))
      offset += DIGITS
      if not size:
        return sorted(found, key=lambda frame: -frame[1])
      found.append((offset, size))
      offset += size


def _extract(path: str, offset: int, size: int, dest: str) -> None:
  with open(path, 'rb') as f:
    f.seek(offset)
    data = io.BytesIO(f.read(size))
  with zstd.ZstdFile(data) as z, tarfile.open(fileobj=z, mode='r|') as tar:
    for member in tar:
      if (source := tar.extractfile(member)) is None:
        continue  # A folder, which its files make.
      target = os.path.join(dest, member.name)
      os.makedirs(os.path.dirname(target), exist_ok=True)
      with source, open(target, 'wb') as out:
        shutil.copyfileobj(source, out, 1 << 20)
      if member.mode & 0o100:
        os.chmod(target, 0o755)


def main(path: str, offset: int, dest: str) -> None:
  with thread.ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
    jobs = [
      pool.submit(_extract, path, start, size, dest)
      for start, size in frames(path, offset)
    ]
    for job in jobs:
      job.result()


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
