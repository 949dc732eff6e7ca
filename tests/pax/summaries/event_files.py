# SPDX-License-Identifier: Apache-2.0
"""Reads TensorBoard's event files by their format."""

from __future__ import annotations

import os
from typing import Any


def read(folder: str) -> list[tuple[int, Any]]:
  """(step, value) of everything in the one file of a folder."""
  from tensorboardX import proto

  [name] = os.listdir(folder)
  with open(os.path.join(folder, name), 'rb') as f:
    content = f.read()
  position, found = 0, []
  while position < len(content):
    size = int.from_bytes(content[position : position + 8], 'little')
    # Each record: its size, a checksum, itself, and a checksum.
    record = content[position + 12 : position + 12 + size]
    position += 16 + size
    found.append(proto.event_pb2.Event.FromString(record))
  return [(e.step, v) for e in found for v in e.summary.value]
