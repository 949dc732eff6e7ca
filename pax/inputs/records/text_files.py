# SPDX-License-Identifier: Apache-2.0
"""Text files: patterns, documents, lines of JSON, and the held-out split."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# Longer files are split into several documents, at line ends.
MAX_DOCUMENT_BYTES = 1 << 20
# End of the names of files with a JSON value in each line.
JSON_LINES = '.jsonl'

# Not in the default corpus: installed packages, and tests of the standard
# library, which many Python distributions do not ship.
_NOT_LIBRARY = frozenset(
  ['site-packages', 'dist-packages', 'test', 'tests', 'idle_test']
)


def stdlib_files() -> tuple[str, ...]:
  """Returns the source files of the Python standard library, sorted.

  Raises:
    ValueError: the standard library has no source files.
  """
  root = sysconfig.get_paths()['stdlib']
  paths = []
  for folder, folders, names in os.walk(root):
    folders[:] = [f for f in folders if f not in _NOT_LIBRARY]
    paths += [os.path.join(folder, n) for n in names if n.endswith('.py')]
  if not paths:
    raise ValueError(
      f'the standard library at {root} has no .py files; name a text corpus '
      'instead, as in --set TRAIN_FILES=/data/*.txt'
    )
  return tuple(sorted(paths, key=lambda path: os.path.relpath(path, root)))


def expand(patterns: str | Sequence[str] | None) -> tuple[str, ...]:
  """Returns the files that `patterns` match, sorted and without duplicates.

  Args:
    patterns: Paths, globs (`**` matches directories at any depth) and
      directories (all their files), in a sequence or separated by commas; None
      is the Python standard library.

  Raises:
    ValueError: a pattern matches no file.
  """
  if patterns is None:
    return stdlib_files()
  if isinstance(patterns, str):
    patterns = [p for p in patterns.split(',') if p]
  paths: set[str] = set()
  for pattern in patterns:
    matches = _files_of(os.path.expanduser(os.fspath(pattern)))
    if not matches:
      raise ValueError(
        f'no file matches {pattern!r} (searched from {os.getcwd()}); give '
        'paths, globs or directories'
      )
    paths.update(matches)
  return tuple(sorted(paths))


def documents(paths: Iterable[str]) -> Iterator[bytes]:
  """Yields the documents of files; a long file has several."""
  for path in paths:
    with open(path, 'rb') as f:
      content = f.read()
    yield from _split(content)


def json_lines(path: str) -> Iterator[tuple[str, Any]]:
  """Yields `file:line` and the value of each line that is not empty.

  Raises:
    ValueError: A line is not JSON.
  """
  with open(path, 'rb') as f:
    for number, line in enumerate(f, 1):
      if line.strip():
        place = f'{path}:{number}'
        try:
          yield place, json.loads(line)
        except ValueError as e:
          raise ValueError(
            f'{place} must be JSON, got {line[:40]!r}: {e}'
          ) from e


def json_text(place: str, value: Any, fields: Sequence[str]) -> str:
  """Returns the text of a value of JSON, a string or an object with a text.

  Args:
    place: Where the value is.
    value: The value.
    fields: Names of the field with the text; the first that exists.

  Raises:
    ValueError: The value has no text.
  """
  text = value
  if isinstance(value, dict):
    text = next((value[name] for name in fields if name in value), None)
  if not isinstance(text, str):
    raise ValueError(
      f'{place} must be a string or an object with {" or ".join(fields)}, got'
      f' {json.dumps(value)[:80]}'
    )
  return text


def is_held_out(document: bytes, percent: float) -> bool:
  """Returns whether `document` is in the `percent` held out for evaluation.

  A hash of the content decides: the split is the same on every machine, and
  copies of a document are on the same side.

  Raises:
    ValueError: `percent` is not between 0 and 100.
  """
  if not 0 <= percent <= 100:
    raise ValueError(f'percent must be within 0 and 100, got {percent}')
  digest = hashlib.sha256(document).digest()
  return int.from_bytes(digest[:8], 'little') < percent / 100 * 2**64


def _files_of(pattern: str) -> list[str]:
  is_folder = os.path.isdir(pattern)
  if os.path.exists(pattern):
    # Its name may have the characters of a glob.
    pattern = glob.escape(pattern)
  if is_folder:
    pattern = os.path.join(pattern, '**')
  return [p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)]


def _split(content: bytes) -> Iterator[bytes]:
  start = 0
  while start < len(content):
    end = start + MAX_DOCUMENT_BYTES
    if end < len(content):
      end = content.rfind(b'\n', start, end) + 1 or end
    yield content[start:end]
    start = end
