# SPDX-License-Identifier: Apache-2.0
"""A pseudo-terminal, and the screen that its output makes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

_TOKEN = re.compile(
  r'\x1b\[(?P<args>[\d;?]*)(?P<kind>[A-Za-z])|(?P<text>.)', re.S
)


class Screen:
  """The lines of a terminal that does not scroll; knows what Pax sends."""

  def __init__(self) -> None:
    self.lines = ['']
    self._row = self._column = 0

  def feed(self, text: str) -> None:
    """Interprets the output of a program.

    Raises:
      ValueError: A control sequence is unknown.
    """
    for token in _TOKEN.finditer(text):
      if (char := token['text']) is not None:
        self._put(char)
      elif token['kind'] == 'K' and token['args'] == '2':
        self.lines[self._row] = ''
      elif token['kind'] == 'A':
        self._row -= int(token['args'] or 1)
      elif token['kind'] != 'm':
        raise ValueError(f'unknown control sequence {token[0]!r}')

  def _put(self, char: str) -> None:
    if char == '\r':
      self._column = 0
    elif char == '\n':
      self._row += 1
      self.lines += [''] * (self._row + 1 - len(self.lines))
    else:
      line = self.lines[self._row].ljust(self._column)
      self.lines[self._row] = (
        line[: self._column] + char + line[self._column + 1 :]
      )
      self._column += 1


class Terminal:
  """A pseudo-terminal; `slave` is the descriptor for the program."""

  def __init__(self, columns: int):
    self._master, self.slave = pty.openpty()
    self.resize(columns)
    # All that was read.
    self.text = ''

  def resize(self, columns: int) -> None:
    """Changes the width, as a user does with a window."""
    size = struct.pack('HHHH', 24, columns, 0, 0)
    fcntl.ioctl(self.slave, termios.TIOCSWINSZ, size)

  def read(self, secs: float = 0.2) -> str:
    """Returns new output, once there is none for a time."""
    new = b''
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
      if select.select([self._master], [], [], 0.02)[0]:
        new += os.read(self._master, 65536)
        deadline = time.monotonic() + secs
    self.text += new.decode()
    return new.decode()

  def screen(self) -> list[str]:
    """Returns the lines that all output so far makes."""
    self.read()
    screen = Screen()
    screen.feed(self.text)
    return screen.lines

  def close(self) -> None:
    """Closes both ends."""
    os.close(self._master)
    os.close(self.slave)
