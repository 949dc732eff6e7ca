# SPDX-License-Identifier: Apache-2.0
"""Files of one JSON record per line, which a kill may have cut short."""

from __future__ import annotations

import json
import os
from typing import Any, TextIO


def open_to_append(path: str) -> TextIO:
  """Opens a file behind its last complete line; what follows that is dropped.

  A process that is killed while it writes leaves half a line.
  """
  if os.path.exists(path):
    with open(path, 'rb+') as f:
      content = f.read()
      f.truncate(content.rfind(b'\n') + 1)
  return open(path, 'a', encoding='utf-8')


def append(file: TextIO, record: dict[str, Any]) -> None:
  """Writes a record, for others to read at once."""
  file.write(json.dumps(record) + '\n')
  file.flush()


def read(path: str) -> list[dict[str, Any]]:
  """The records of a file, which may still be written; none without a file."""
  if not os.path.exists(path):
    return []
  with open(path, encoding='utf-8') as f:
    return [json.loads(line) for line in f if line.endswith('\n')]
