# SPDX-License-Identifier: Apache-2.0
"""Progress line of a job: redrawn in a terminal, otherwise printed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TextIO

from absl import logging

from pax.summaries import live_line, throughput

Part = live_line.Part

# Shortest time between two updates of a terminal.
_REDRAW_SECONDS = 0.1
_STATUS_SECONDS = 60.0


class _Line(NamedTuple):
  """What a terminal shows: parts, and the filled share of a bar."""

  parts: list[Part]
  share: float | None


class Progress:
  """Shows step, metrics, speed, utilization and estimated time of arrival.

  Any thread may call its methods: that which writes checkpoints prints, too.
  """

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
    self._lock = threading.Lock()
    self._line = _Line([], None)
    self._drawn_at = float('-inf')
    self._batches_printed_at = clock()
    # None before the first line, and where it cannot be redrawn.
    self._live: live_line.LiveLine | None = None

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
    parts = line_parts(
      step,
      self._total_steps,
      metrics,
      rate=rate,
      mfu=mfu,
      input_wait=input_wait,
    )
    logging.info('%s', line_text(parts))
    with self._lock:
      self._line = _Line(parts, min(1.0, step / max(1, self._total_steps)))
      if not live_line.can_redraw(self._stream):
        print(line_text(parts), file=self._stream, flush=True)
      elif self._clock() - self._drawn_at >= _REDRAW_SECONDS:
        self._draw(self._line)

  def batches(self, label: str, done: int, total: int | None = None) -> None:
    """Shows the progress of an evaluation; once a minute without a terminal.

    Args:
      label: Program and input, such as `eval held_out`.
      done: Number of batches done.
      total: Number of batches; None if unknown.
    """
    count = batch_count(done) if total is None else f'{done}/{total} batches'
    parts = [Part(label, 0, 'bold'), Part(count, 0)]
    now = self._clock()
    if done == 0:
      self._batches_printed_at = now
    if not live_line.can_redraw(self._stream):
      if now - self._batches_printed_at >= _STATUS_SECONDS:
        self._batches_printed_at = now
        self.print(line_text(parts))
    elif now - self._drawn_at >= _REDRAW_SECONDS:
      with self._lock:
        self._draw(_Line(parts, None if total is None else done / total))

  def print(self, text: str) -> None:
    """Prints `text` above the line, and logs it."""
    logging.info('%s', text)
    with self._lock:
      if self._live is None:
        print(text, file=self._stream, flush=True)
        return
      self._live.print(text)
      if self._line.parts:
        self._draw(self._line)

  def close(self) -> None:
    """Ends the last line."""
    with self._lock:
      if self._live is not None:
        if self._line.parts:
          self._draw(self._line)
        self._live.close()
      self._live = None
      self._line = _Line([], None)

  @property
  def _stream(self) -> TextIO:
    return self._fixed_stream or sys.stderr

  def _draw(self, line: _Line) -> None:
    if self._live is None:
      self._live = live_line.LiveLine(self._stream)
    self._live.draw(line.parts, line.share)
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
      line_text(line_parts(step, self._total_steps, {}, rate=rate)),
      100 * step / self._total_steps,
      short_time(now - self._began),
    )


class NoopStatusLog:
  """Logs nothing."""

  def update(self, step: int, rate: throughput.Rate | None) -> None:
    pass


def line_parts(
  step: int,
  total_steps: int,
  metrics: Mapping[str, float],
  *,
  rate: throughput.Rate | None = None,
  mfu: float | None = None,
  input_wait: float | None = None,
) -> list[Part]:
  """Returns `step 40/100`, `loss 2.3456`, `9.87 steps/s`, `81.2k tokens/s` ...

  The first metric precedes the speed; the others are at the end.

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
  parts = [Part(f'step {step}/{total_steps}', 0, 'bold')]
  parts += [Part(text, 0, 'bold cyan') for text in shown[:1]]
  if rate is not None:
    parts.append(Part(f'{rate.steps_per_sec:.2f} steps/s', 6))
    speed = f'{short_number(rate.units_per_sec)} {rate.unit}/s'
    parts.append(Part(speed, 2))
  if mfu is not None:
    parts.append(Part(f'MFU {100 * mfu:.1f}%', 3))
  if input_wait is not None:
    parts.append(Part(f'input wait {100 * input_wait:.1f}%', 4))
  if rate is not None:
    left = max(0, total_steps - step) / rate.steps_per_sec
    parts.append(Part(f'ETA {short_time(left)}', 1, 'bold'))
  return parts + [Part(text, 5, 'yellow') for text in shown[1:]]


def line_text(parts: Sequence[Part]) -> str:
  """Returns the line of a pipe or a log."""
  return '  '.join(part.text for part in parts)


def batch_count(count: int) -> str:
  """Returns `1 batch`, `2 batches` ..."""
  return f'{count} batch' if count == 1 else f'{count} batches'


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
