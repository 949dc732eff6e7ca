# SPDX-License-Identifier: Apache-2.0
"""JSON Lines files that several processes may append to.

A killed process may leave an incomplete line, which readers skip.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, TextIO


def open_to_append(path: str) -> TextIO:
  """Opens a file to append lines; terminates an incomplete last line."""
  file = open(path, 'a', encoding='utf-8')
  with open(path, 'rb') as f:
    if os.fstat(f.fileno()).st_size:
      f.seek(-1, os.SEEK_END)
      if f.read() != b'\n':
        file.write('\n')
        file.flush()
  return file


def append(file: TextIO, record: Mapping[str, Any]) -> None:
  """Writes and flushes a record."""
  file.write(json.dumps(record) + '\n')
  file.flush()


def read(path: str) -> list[dict[str, Any]]:
  """Returns the records of a file that may still be written; [] if missing."""
  if not os.path.exists(path):
    return []
  with open(path, encoding='utf-8') as f:
    return list(_records(f))


def _records(lines: TextIO) -> Iterator[dict[str, Any]]:
  for line in lines:
    try:
      yield json.loads(line)
    except json.JSONDecodeError:
      continue  # Incomplete line.
