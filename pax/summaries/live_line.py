# SPDX-License-Identifier: Apache-2.0
"""The last line of a terminal, redrawn in place; other text goes above it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TextIO

_GAP = '  '
_BAR_WIDTH = 24
_UNREDRAWABLE_TERMINALS = ('dumb', 'unknown')


class Part(NamedTuple):
  """A part of the line, left out where the terminal is narrow."""

  text: str
  # The parts of the largest rank are left out first; those of rank 0 never.
  rank: int
  # A style of the package rich.
  style: str = ''


class LiveLine:
  """A line of parts and a bar; shown once it is drawn."""

  # The line that is on the terminal.
  _shown: LiveLine | None = None

  def __init__(self, stream: TextIO):
    """Takes a terminal, as of `can_redraw`."""
    # Slow to import, and used on terminals only.
    from rich import console, live

    class Console(console.Console):
      """Never hides the cursor: a killed process could not show it again."""

      def show_cursor(self, show: bool = True) -> bool:
        return False

      def on_broken_pipe(self) -> None:
        raise

    self._console = Console(
      file=stream, force_terminal=True, highlight=False, markup=False
    )
    self._live = live.Live(
      console=self._console,
      auto_refresh=False,
      redirect_stdout=False,
      redirect_stderr=False,
    )

  def draw(self, parts: Sequence[Part], share: float | None) -> None:
    """Shows a line in place of the last one.

    Args:
      parts: the parts from left to right.
      share: part of the bar that is filled, from 0 to 1; None is no bar.
    """
    self._live.update(_Line(parts, share))
    self._live.start()
    self._live.refresh()
    LiveLine._shown = self

  def print(self, text: str) -> None:
    """Prints text above the line."""
    self._console.print(text, soft_wrap=True)

  def close(self) -> None:
    """Leaves the line as it is."""
    self._live.stop()
    LiveLine._shown = None


class ConsoleHandler(logging.Handler):
  """Logs to stderr; above the line if one is shown."""

  def emit(self, record: logging.LogRecord) -> None:
    try:
      text = self.format(record)
      if LiveLine._shown is not None:
        LiveLine._shown.print(text)
      else:
        print(text, file=sys.stderr, flush=True)
    except Exception:
      self.handleError(record)


def can_redraw(stream: TextIO) -> bool:
  """Returns whether a stream is a terminal that people look at.

  Terminals of CI systems keep every line, and some cannot move the cursor.
  """
  is_ci = os.environ.get('CI', '').lower() not in ('', '0', 'false')
  terminal = os.environ.get('TERM', '').lower()
  return (
    stream.isatty() and not is_ci and terminal not in _UNREDRAWABLE_TERMINALS
  )


class _Line:
  """Renders the parts that fit, for rich: the width may change."""

  def __init__(self, parts: Sequence[Part], share: float | None):
    self._parts, self._share = parts, share

  def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
    from rich import progress_bar, text

    # Some terminals move to the next line after the last column.
    width = options.max_width - 1
    parts = list(self._parts)
    bar_width = len(_GAP) + _BAR_WIDTH
    has_bar = self._share is not None
    has_bar = has_bar and _width(parts) + bar_width <= width
    while _width(parts) > width and any(part.rank for part in parts):
      parts.remove(max(parts, key=lambda part: part.rank))
    line = text.Text(no_wrap=True, end='')
    for part in parts:
      line.append(_GAP if line else '')
      line.append(part.text, style=part.style)
    line.truncate(width)
    yield line
    if has_bar:
      yield text.Text(_GAP, end='')
      yield progress_bar.ProgressBar(
        total=1.0,
        completed=self._share or 0.0,
        width=_BAR_WIDTH,
        complete_style='cyan',
        finished_style='green',
      )


def _width(parts: Sequence[Part]) -> int:
  return len(_GAP.join(part.text for part in parts))
