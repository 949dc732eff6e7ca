# SPDX-License-Identifier: Apache-2.0
"""State of the process and its threads: thread-local stacks, logging level."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from absl import flags

_PMAP_USE_TENSORSTORE = 'pmap_use_tensorstore'
# Programs set the flag when they have imported praxis.
if _PMAP_USE_TENSORSTORE not in flags.FLAGS:
  flags.DEFINE_bool(
    _PMAP_USE_TENSORSTORE,
    False,
    'Save checkpoints of runs without a mesh in the format of those with one.',
  )


class ThreadLocalStack(threading.local):
  """A list, `stack`, with separate contents in each thread."""

  def __init__(self):
    super().__init__()
    self.stack: list[Any] = []


@contextlib.contextmanager
def logging_verbosity_level(level: str | int) -> Iterator[None]:
  """Sets the root logger's level, as 'INFO' or 'FATAL', in a `with` block."""
  root = logging.getLogger()
  previous = root.level
  root.setLevel(level)
  try:
    yield
  finally:
    root.setLevel(previous)


def pmap_use_tensorstore() -> bool:
  """Returns the flag `--pmap_use_tensorstore`, parsed or not."""
  return bool(flags.FLAGS[_PMAP_USE_TENSORSTORE].value)
