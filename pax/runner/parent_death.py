# SPDX-License-Identifier: Apache-2.0
"""Ends a process when its parent dies, for any reason.

The parent keeps the write end of a pipe open and never writes. When the parent
dies, also by SIGKILL, the system closes the write end, and the child reads the
end of the file.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping

# Holds the file descriptor of the read end.
_VARIABLE = 'PAX_LIFELINE'
# For a child whose standard input stays open as long as the parent, as by ssh.
ON_INPUT: Mapping[str, str] = {_VARIABLE: '0'}
# Time for a child to save and exit.
_GRACE_SECS = 120.0


class ParentPipe:
  """The parent's pipe, for children that end with it."""

  def __init__(self) -> None:
    self._read, self._write = os.pipe()

  @property
  def environment(self) -> Mapping[str, str]:
    """Environment variables of the child."""
    return {_VARIABLE: str(self._read)}

  @property
  def pass_fds(self) -> tuple[int]:
    """File descriptors that the child inherits."""
    return (self._read,)

  def close(self) -> None:
    """Ends the children."""
    os.close(self._write)
    os.close(self._read)


def watch(grace_secs: float = _GRACE_SECS) -> None:
  """Sends this process SIGTERM when its parent dies, and SIGKILL later.

  Does nothing in a process that has no pipe from its parent.
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
