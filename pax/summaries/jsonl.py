# SPDX-License-Identifier: Apache-2.0
"""Files of one JSON record per line, to which several processes may append.

A process that is killed while it writes leaves half a line, which readers pass
over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, TextIO


def open_to_append(path: str) -> TextIO:
  """Opens a file for whole lines; half a line that is there gets its end."""
  file = open(path, 'a', encoding='utf-8')
  with open(path, 'rb') as f:
    if os.fstat(f.fileno()).st_size:
      f.seek(-1, os.SEEK_END)
      if f.read() != b'\n':
        file.write('\n')
        file.flush()
  return file


def append(file: TextIO, record: dict[str, Any]) -> None:
  """Writes a record, for others to read at once."""
  file.write(json.dumps(record) + '\n')
  file.flush()


def read(path: str) -> list[dict[str, Any]]:
  """The records of a file, which may still be written; none without a file."""
  if not os.path.exists(path):
    return []
  with open(path, encoding='utf-8') as f:
    return list(_records(f))


def _records(lines: TextIO) -> Iterator[dict[str, Any]]:
  for line in lines:
    try:
      yield json.loads(line)
    except json.JSONDecodeError:
      continue  # Half a line.
