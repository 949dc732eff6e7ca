# SPDX-License-Identifier: Apache-2.0
"""A process that ends when the one that started it does, however that ends.

The starter keeps the writing end of a pipe open, and nobody writes to it. When
the starter is gone, by SIGKILL too, the system closes that end, and who reads
the other one sees the end of the file.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping

_VARIABLE = 'PAX_LIFELINE'
# For a process whose standard input its starter keeps open, as ssh can.
ON_INPUT: Mapping[str, str] = {_VARIABLE: '0'}
# How long a process may take to save and end.
_GRACE_SECS = 120.0


class Lifeline:
  """What a process gives to those that are to end with it."""

  def __init__(self) -> None:
    self._read, self._write = os.pipe()

  @property
  def environment(self) -> Mapping[str, str]:
    """What the other process finds its end by."""
    return {_VARIABLE: str(self._read)}

  @property
  def pass_fds(self) -> tuple[int]:
    """What it inherits."""
    return (self._read,)

  def close(self) -> None:
    """Ends those that hold the other end."""
    os.close(self._write)
    os.close(self._read)


def watch(grace_secs: float = _GRACE_SECS) -> None:
  """Sends this process SIGTERM when its starter is gone, and SIGKILL later.

  Without a starter that gave it a `Lifeline` it does nothing.
  """
  descriptor = os.environ.pop(_VARIABLE, None)
  if descriptor is not None:
    threading.Thread(
      target=_wait, args=(int(descriptor), grace_secs), daemon=True
    ).start()


def _wait(descriptor: int, grace_secs: float) -> None:
  os.read(descriptor, 1)
  os.kill(os.getpid(), signal.SIGTERM)
  threading.Event().wait(grace_secs)
  os.kill(os.getpid(), signal.SIGKILL)
