# SPDX-License-Identifier: Apache-2.0
"""Progress line of a job: redrawn in a terminal, otherwise printed."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from absl import logging

from pax.summaries import throughput

_ERASE_LINE = '\r\x1b[2K'
# Shortest time between two updates of a terminal.
_REDRAW_SECONDS = 0.1
_BAR_WIDTH = 30
_STATUS_SECONDS = 60.0


class Progress:
  """Shows step, metrics, speed, utilization and estimated time of arrival."""

  def __init__(
    self,
    total_steps: int,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Shows nothing.

    Args:
      total_steps: The last step.
      stream: Output; None is `sys.stderr` at the time of writing.
      clock: Returns seconds.
    """
    self._total_steps = total_steps
    self._fixed_stream = stream
    self._clock = clock
    self._line = ''
    self._drawn_at = float('-inf')

  def update(
    self,
    step: int,
    metrics: Mapping[str, float],
    *,
    rate: throughput.Rate | None = None,
    mfu: float | None = None,
    input_wait: float | None = None,
  ) -> None:
    """Shows and logs the line of `step`; a terminal keeps one line.

    Args:
      step: Number of steps done.
      metrics: Metrics by name.
      rate: The speed; None if it is not measured yet.
      mfu: Model FLOPs utilization; None if it is unknown.
      input_wait: Share of the time in which steps wait for a batch; None if it
        is unknown.
    """
    self._line = format_line(
      step,
      self._total_steps,
      metrics,
      rate=rate,
      mfu=mfu,
      input_wait=input_wait,
    )
    logging.info('%s', self._line)
    if not self._is_terminal:
      print(self._line, file=self._stream, flush=True)
    elif self._clock() - self._drawn_at >= _REDRAW_SECONDS:
      self._draw()

  def batches(self, label: str, done: int, total: int | None = None) -> None:
    """Shows the progress of an evaluation; only in a terminal.

    Args:
      label: Program and input, such as `eval held_out`.
      done: Number of batches done.
      total: Number of batches; None if unknown.
    """
    if self._is_terminal and self._clock() - self._drawn_at >= _REDRAW_SECONDS:
      line, self._line = self._line, batches_line(label, done, total)
      self._draw()
      self._line = line

  def print(self, text: str) -> None:
    """Prints `text` above the line, and logs it."""
    logging.info('%s', text)
    if self._is_terminal and self._line:
      self._stream.write(_ERASE_LINE)
    print(text, file=self._stream, flush=True)
    if self._is_terminal and self._line:
      self._draw()

  def close(self) -> None:
    """Ends the last line."""
    if self._is_terminal and self._line:
      self._draw()
      print(file=self._stream, flush=True)
    self._line = ''

  @property
  def _stream(self) -> TextIO:
    return self._fixed_stream or sys.stderr

  @property
  def _is_terminal(self) -> bool:
    return self._stream.isatty()

  def _draw(self) -> None:
    width = shutil.get_terminal_size().columns - 1
    self._stream.write(_ERASE_LINE + self._line[:width])
    self._stream.flush()
    self._drawn_at = self._clock()


class StatusLog:
  """Logs the progress of training at most once a minute."""

  def __init__(
    self, total_steps: int, clock: Callable[[], float] = time.monotonic
  ):
    """Logs nothing.

    Args:
      total_steps: The last step.
      clock: Returns seconds.
    """
    self._total_steps = total_steps
    self._clock = clock
    self._began = self._logged_at = clock()

  def update(self, step: int, rate: throughput.Rate | None) -> None:
    """Logs speed, share of steps done, remaining and elapsed time."""
    now = self._clock()
    if rate is None or now - self._logged_at < _STATUS_SECONDS:
      return
    self._logged_at = now
    logging.info(
      '%s  %.1f%%  up %s',
      format_line(step, self._total_steps, {}, rate=rate),
      100 * step / self._total_steps,
      short_time(now - self._began),
    )


class NoopStatusLog:
  """Logs nothing."""

  def update(self, step: int, rate: throughput.Rate | None) -> None:
    pass


def format_line(
  step: int,
  total_steps: int,
  metrics: Mapping[str, float],
  *,
  rate: throughput.Rate | None = None,
  mfu: float | None = None,
  input_wait: float | None = None,
) -> str:
  """Returns `step 40/100  loss 2.3456  9.87 steps/s  81.2k tokens/s ...`.

  The first metric precedes the speed; the others are at the end, where a narrow
  terminal truncates the line.

  Args:
    step: Number of steps done.
    total_steps: The last step.
    metrics: Metrics by name; integers are counts.
    rate: The speed; None if it is not measured yet.
    mfu: Model FLOPs utilization; None if it is unknown.
    input_wait: Share of the time in which steps wait for a batch; None if it is
      unknown.
  """
  shown = [
    f'{name} {value if isinstance(value, int) else f"{value:.4f}"}'
    for name, value in metrics.items()
  ]
  parts = [f'step {step}/{total_steps}', *shown[:1]]
  if rate is not None:
    parts.append(f'{rate.steps_per_sec:.2f} steps/s')
    parts.append(f'{short_number(rate.tokens_per_sec)} tokens/s')
  if mfu is not None:
    parts.append(f'MFU {100 * mfu:.1f}%')
  if input_wait is not None:
    parts.append(f'input wait {100 * input_wait:.1f}%')
  if rate is not None:
    left = max(0, total_steps - step) / rate.steps_per_sec
    parts.append(f'ETA {short_time(left)}')
  return '  '.join([*parts, *shown[1:]])


def batches_line(label: str, done: int, total: int | None) -> str:
  """Returns `eval held_out  [######........]  3/7 batches`."""
  if total is None:
    return f'{label}  {done} batches'
  filled = round(_BAR_WIDTH * done / total)
  bar = '#' * filled + '.' * (_BAR_WIDTH - filled)
  return f'{label}  [{bar}]  {done}/{total} batches'


def short_number(value: float) -> str:
  """Returns a number as 950, 81.2k or 1.50M."""
  for limit, unit in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if value >= limit:
      return f'{value / limit:.3g}{unit}'
  return f'{value:.0f}'


def short_time(seconds: float) -> str:
  """Returns a duration as 7s, 3m05s, 2h07m or 4d03h."""
  seconds = round(seconds)
  minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
  if days:
    return f'{days}d{hours % 24:02}h'
  if hours:
    return f'{hours}h{minutes % 60:02}m'
  if minutes:
    return f'{minutes}m{seconds % 60:02}s'
  return f'{seconds}s'
