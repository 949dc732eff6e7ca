# SPDX-License-Identifier: Apache-2.0
"""Second stage of a .par file: unpacks its zip with its own interpreter.

unpack.py FILE.par FOLDER
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import zipfile


def _extract(path: str, names: list[str], dest: str) -> None:
  with zipfile.ZipFile(path) as z:
    for name in names:
      z.extract(name, dest)
      if (z.getinfo(name).external_attr >> 16) & 0o100:
        os.chmod(os.path.join(dest, name), 0o755)


def main(path: str, dest: str) -> None:
  with zipfile.ZipFile(path) as z:
    names = z.namelist()
  for folder in {os.path.dirname(name) for name in names}:
    os.makedirs(os.path.join(dest, folder), exist_ok=True)
  parts = min(os.cpu_count() or 1, 16)
  with concurrent.futures.ThreadPoolExecutor(parts) as pool:
    jobs = [
      pool.submit(_extract, path, names[i::parts], dest) for i in range(parts)
    ]
    for job in jobs:
      job.result()


if __name__ == '__main__':
  main(sys.argv[1], sys.argv[2])
