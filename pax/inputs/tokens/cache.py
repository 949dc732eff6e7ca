# SPDX-License-Identifier: Apache-2.0
"""The cache of tokenizers and tokenized text, `$XDG_CACHE_HOME/pax`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from absl import logging


def folder() -> pathlib.Path:
  """Returns the folder of the cache, by default `~/.cache/pax`."""
  base = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(base) / 'pax'


@contextlib.contextmanager
def lock(path: pathlib.Path) -> Iterator[None]:
  """Excludes other processes, where the file system has locks.

  Args:
    path: The lock file, which is made with its folder.
  """
  with contextlib.ExitStack() as stack:
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      file = stack.enter_context(path.open('a'))
      fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as e:
      logging.info('Cannot lock the cache: %s', e)
    yield
