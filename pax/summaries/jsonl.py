# SPDX-License-Identifier: Apache-2.0
"""JSON Lines files that several processes may append to.

A killed process may leave a truncated line, which readers skip. Other lines
that are no records are damaged: readers skip them too, and the job that appends
to the file moves them to `NAME.damaged`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from absl import logging

from pax.files import side_files, storage

T = TypeVar('T')


class Appender:
  """Appends records to a file, each by one write that is not buffered."""

  def __init__(self, path: str):
    """Opens or creates the file.

    Raises:
      OSError: The file cannot be opened.
    """
    # The file.
    self.path = path
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    self._descriptor = os.open(path, flags, 0o666)
    size = os.fstat(self._descriptor).st_size
    last = os.pread(self._descriptor, 1, size - 1) if size else b'\n'
    # Whether the file ends within a line, of a killed process or a full disk.
    self._is_truncated = last != b'\n'

  def append(self, record: Mapping[str, Any]) -> None:
    """Writes a record.

    Raises:
      OSError: It is not or not completely written.
    """
    line = f'{json.dumps(record)}\n'.encode()
    rest = b'\n' + line if self._is_truncated else line
    while rest:
      num_written = os.write(self._descriptor, rest)
      rest = rest[num_written:]
      self._is_truncated = bool(rest)

  def close(self) -> None:
    """Closes the file."""
    os.close(self._descriptor)


def read(path: storage.PathLike, parse: Callable[[Any], T]) -> list[T]:
  """Returns the records of a file that may still be written; [] if missing.

  Args:
    path: The file, which is not changed.
    parse: Returns the record of a JSON value; raises one of
      `side_files.INVALID` if there is none.
  """
  try:
    content = side_files.read_bytes(path)
  except FileNotFoundError:
    return []
  except OSError as e:
    logging.warning('%s cannot be read: %s', path, e.strerror or e)
    return []
  records = list(_records(content, parse))
  num_damaged = sum(isinstance(record, _Damaged) for record in records)
  if num_damaged:
    logging.warning('%s: skipped %d damaged lines', path, num_damaged)
  return [r for r in records if not isinstance(r, _Damaged)]


def repair(path: str, parse: Callable[[Any], T]) -> list[T]:
  """Returns the records of a side file; moves damaged lines to `NAME.damaged`.

  Blanks replace these lines: other processes may be appending to the file. A
  file that cannot be read is set aside.

  Args:
    path: The file.
    parse: As of `read`.
  """
  try:
    content = side_files.read_bytes(path)
  except FileNotFoundError:
    return []
  except OSError as e:
    side_files.set_aside(path, e.strerror or str(e))
    return []
  records = list(_records(content, parse))
  if damaged := [r for r in records if isinstance(r, _Damaged)]:
    with side_files.tolerate_errors(path):
      _move(path, damaged)
  return [r for r in records if not isinstance(r, _Damaged)]


class _Damaged:
  """A line that is no record."""

  def __init__(self, offset: int, line: bytes):
    self.offset, self.line = offset, line


def _records(
  content: bytes, parse: Callable[[Any], T]
) -> Iterator[T | _Damaged]:
  offset = 0
  for line in content.split(b'\n'):
    try:
      if line.strip() and not _is_truncated(line):
        yield parse(json.loads(line.decode()))
    except side_files.INVALID:
      yield _Damaged(offset, line)
    offset += len(line) + 1


def _is_truncated(line: bytes) -> bool:
  """Returns whether a killed process may have left the line."""
  is_text = line.isascii() and line.decode().isprintable()
  return is_text and line.startswith(b'{') and not line.endswith(b'}')


def _move(path: str, damaged: list[_Damaged]) -> None:
  target = side_files.damaged_path(path)
  with open(path, 'r+b') as file:
    target.write_bytes(b''.join(d.line + b'\n' for d in damaged))
    for line in damaged:
      file.seek(line.offset)
      file.write(b' ' * len(line.line))
  logging.warning(
    '%s: moved %d damaged lines to %s; continuing without them',
    path,
    len(damaged),
    target.name,
  )
