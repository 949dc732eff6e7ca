# SPDX-License-Identifier: Apache-2.0
"""Which text a run reads: files, the documents in them, the held-out split."""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence

# A longer file is cut into several documents, at ends of lines.
MAX_DOCUMENT_BYTES = 1 << 20

# Left out of the default corpus: what is installed beside the library, and its
# tests, which many distributions of Python do not ship.
_NOT_LIBRARY = frozenset(
  ['site-packages', 'dist-packages', 'test', 'tests', 'idle_test']
)


def stdlib_files() -> tuple[str, ...]:
  """The Python standard library's own source files, in the order of names."""
  root = sysconfig.get_paths()['stdlib']
  found = []
  for folder, folders, names in os.walk(root):
    folders[:] = [f for f in folders if f not in _NOT_LIBRARY]
    found += [os.path.join(folder, n) for n in names if n.endswith('.py')]
  if not found:
    raise ValueError(
      f'the standard library at {root} has no .py files; name a text corpus '
      'instead, as in --set TRAIN_FILES=/data/*.txt'
    )
  return tuple(sorted(found, key=lambda path: os.path.relpath(path, root)))


def expand(patterns: str | Sequence[str] | None) -> tuple[str, ...]:
  """The files that `patterns` match, sorted and each once.

  Args:
    patterns: paths, globs (`**` crosses folders) and folders (all their files);
      None is the Python standard library.

  Raises:
    ValueError: if a pattern matches no file.
  """
  if patterns is None:
    return stdlib_files()
  if isinstance(patterns, str):
    patterns = [p for p in patterns.split(',') if p]
  found = set()
  for pattern in patterns:
    matches = _files_of(os.path.expanduser(os.fspath(pattern)))
    if not matches:
      raise ValueError(
        f'no file matches {pattern!r} (searched from {os.getcwd()}); give '
        'paths, globs or folders'
      )
    found.update(matches)
  return tuple(sorted(found))


def documents(paths: Iterable[str]) -> Iterator[bytes]:
  """The documents of `paths`: a file is one, or several if it is long."""
  for path in paths:
    with open(path, 'rb') as f:
      content = f.read()
    yield from _pieces(content)


def is_held_out(document: bytes, percent: float) -> bool:
  """Whether `document` belongs to the `percent` of them kept for evaluation.

  This depends on nothing but the content, so that it is the same on every
  machine and two copies of one text are never on both sides.
  """
  if not 0 <= percent <= 100:
    raise ValueError(f'percent must be within 0 and 100, got {percent}')
  digest = hashlib.sha256(document).digest()
  return int.from_bytes(digest[:8], 'little') < percent / 100 * 2**64


def _files_of(pattern: str) -> list[str]:
  if os.path.isdir(pattern):
    pattern = os.path.join(pattern, '**')
  return [p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)]


def _pieces(content: bytes) -> Iterator[bytes]:
  start = 0
  while start < len(content):
    end = start + MAX_DOCUMENT_BYTES
    if end < len(content):
      end = content.rfind(b'\n', start, end) + 1 or end
    yield content[start:end]
    start = end
