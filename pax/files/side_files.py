# SPDX-License-Identifier: Apache-2.0
"""Side files: what a run reads back from its job directory, except checkpoints.

A side file never stops a run. One that is damaged is renamed to
`NAME.damaged`, one that cannot be written is left out, each with one warning.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from absl import logging

from pax.files import atomic_file, storage

T = TypeVar('T')
PathLike = str | os.PathLike[str]
Types = type | tuple[type, ...]

# Raised by a parser for content that it does not accept.
INVALID = (
  ArithmeticError,
  AttributeError,
  LookupError,
  RecursionError,
  TypeError,
  ValueError,
)

NUMBER = (int, float)

# Paths and error numbers that were warned about.
_warned: set[str | int | None] = set()


def read(path: PathLike, parse: Callable[[str], T]) -> T | None:
  """Returns a parsed side file; None if it is missing or damaged.

  Args:
    path: The file. A damaged one is set aside.
    parse: Parses its text; raises one of INVALID if it is damaged.

  Raises:
    OSError: A bucket cannot be read.
  """
  try:
    return parse(read_bytes(path).decode())
  except FileNotFoundError:
    return None
  except OSError as e:
    if isinstance(path, storage.BucketPath):
      # An error of the service: the object is not damaged.
      raise
    set_aside(path, e.strerror or str(e))
  except INVALID as e:
    set_aside(path, f'{type(e).__name__}: {e}')
  return None


def read_json(path: PathLike, parse: Callable[[Any], T]) -> T | None:
  """Returns a parsed side file of JSON; None if it is missing or damaged."""
  return read(path, lambda text: parse(json.loads(text)))


def read_bytes(path: PathLike) -> bytes:
  """Returns the content of a regular file.

  Raises:
    OSError: It cannot be read, or it is a directory, a pipe or a device.
  """
  if isinstance(path, storage.BucketPath):
    return path.read_bytes()
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise OSError('it is not a regular file')
  return pathlib.Path(path).read_bytes()


def check_fields(value: Any, fields: Mapping[str, Types]) -> None:
  """Checks a JSON object.

  Args:
    value: The object.
    fields: Types of its required fields; bool is not a number.

  Raises:
    TypeError: It is not an object, or a field has another type.
    KeyError: A field is missing.
  """
  if not isinstance(value, dict):
    raise TypeError(f'expected an object, got {type(value).__name__}')
  for name, types in fields.items():
    field = value[name]
    if not isinstance(field, types) or isinstance(field, bool):
      raise TypeError(f'field {name!r} is of type {type(field).__name__}')


def set_aside(path: PathLike, reason: str) -> None:
  """Renames a damaged file or directory to `NAME.damaged`, with a warning.

  Args:
    path: The file.
    reason: Why it is damaged.
  """
  damaged = damaged_path(path)
  try:
    storage.move(storage.to_path(path), damaged)
  except FileNotFoundError:
    return  # Another process was first.
  except OSError as e:
    _warn_once(
      str(path),
      f'{path} is damaged ({reason}) and cannot be renamed ({e.strerror});'
      ' continuing without it',
    )
    return
  logging.warning(
    '%s was damaged (%s): renamed to %s; continuing without it',
    path,
    reason,
    damaged.name,
  )


def damaged_path(path: PathLike) -> storage.Path:
  """Returns the path that a damaged file is renamed to."""
  path = storage.to_path(path)
  for count in itertools.count():
    suffix = f'.{count}' if count else ''
    damaged = path.with_name(f'{path.name}.damaged{suffix}')
    is_bucket = isinstance(damaged, storage.BucketPath)
    if not (damaged.exists() if is_bucket else os.path.lexists(damaged)):
      break
  return damaged


def write_text(path: PathLike, text: str, *, is_durable: bool = True) -> None:
  """Replaces a side file, if it can be written; see `atomic_file.AtomicFile`.

  Args:
    path: The file.
    text: Its new content.
    is_durable: Whether to flush it to the disk.
  """
  with tolerate_errors(path):
    if not isinstance(path, storage.BucketPath) and os.path.isdir(path):
      set_aside(path, 'it is not a regular file')
    atomic_file.write_text(path, text, is_durable=is_durable)


def make_directories(root: PathLike, *names: str) -> storage.Path:
  """Creates `root/name/name...` and returns its path.

  `root` is not created: a job directory that was deleted or unmounted must not
  appear anew. A file in place of a directory is set aside.

  Raises:
    OSError: `root` does not exist, or is not writable.
  """
  if isinstance(root, storage.BucketPath):
    return root.joinpath(*names)
  path = pathlib.Path(root)
  for part in pathlib.PurePath(*names).parts:
    path /= part
    if os.path.lexists(path) and not path.is_dir():
      set_aside(path, 'it is not a directory')
    with contextlib.suppress(FileExistsError):
      path.mkdir()
  return path


@contextlib.contextmanager
def tolerate_errors(path: PathLike) -> Iterator[None]:
  """Ends the block at an OSError, of which there is one warning per cause.

  Args:
    path: The side file that the block writes.
  """
  try:
    yield
  except OSError as e:
    report_unwritable(path, e)


def report_unwritable(path: PathLike, error: OSError) -> None:
  """Warns that a side file is incomplete, once for each cause."""
  _warn_once(
    error.errno,
    f'cannot write {path}: {error.strerror or error}; the run continues, but'
    ' its logs, records and summaries are incomplete',
  )


def reset_warnings() -> None:
  """Lets the next run of this process warn about the same causes again."""
  _warned.clear()


def _warn_once(key: str | int | None, message: str) -> None:
  """Logs a warning; a repeated one is for the log file only."""
  level = logging.INFO if key in _warned else logging.WARNING
  _warned.add(key)
  logging.log(level, '%s', message)
