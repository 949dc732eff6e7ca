# SPDX-License-Identifier: Apache-2.0
"""Where the numbers of a run go: TensorBoard events and `metrics.jsonl`.

The training loop hands over values that a device may still be computing; a
thread waits for them and writes, so that the loop never does.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from absl import logging

# In the job directory.
METRICS_FILE = 'metrics.jsonl'
SUMMARIES_DIR = 'summaries'

Scalars = Mapping[str, Any]


class Writer(Protocol):
  """Takes what a run reports; `split` is a directory, such as `train`."""

  def write(
    self,
    step: int,
    scalars: Scalars | Callable[[], Scalars],
    split: str = 'train',
  ) -> None:
    """Records numbers by tag; they may be unfinished jax scalars.

    A function that gives them is called when they are written, in a thread.
    """

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    """Records a text."""

  def flush(self) -> None:
    """Returns when all that was handed over can be read by others."""

  def close(self) -> None:
    """Flushes and ends; raises the first error that writing met."""


class NoopWriter:
  """Writes nothing: for processes that do not report."""

  def write(self, step: int, scalars: Any, split: str = 'train') -> None:
    pass

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    pass

  def flush(self) -> None:
    pass

  def close(self) -> None:
    pass


class JsonlWriter:
  """One JSON line per write: step, split, time (seconds), then the tags.

  A run that goes back to an older checkpoint appends: of two lines with the
  same step and split the later one counts.
  """

  def __init__(self, path: str):
    self._file = open(path, 'a', encoding='utf-8')

  def write(self, step: int, scalars: Scalars, split: str = 'train') -> None:
    record = {'step': step, 'split': split, 'time': round(time.time(), 3)}
    values = {tag: _json_number(value) for tag, value in scalars.items()}
    self._file.write(json.dumps(record | values) + '\n')
    self._file.flush()

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    pass  # Texts are for people, in TensorBoard.

  def flush(self) -> None:
    self._file.flush()

  def close(self) -> None:
    self._file.close()


class TensorBoardWriter:
  """TensorBoard events, in a directory for each split."""

  def __init__(self, summaries_dir: str):
    self._dir = summaries_dir
    self._by_split: dict[str, Any] = {}

  def write(self, step: int, scalars: Scalars, split: str = 'train') -> None:
    events = self._events(split)
    for tag, value in scalars.items():
      events.add_scalar(tag, float(value), step)

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    self._events(split).add_text(tag, text, step)

  def flush(self) -> None:
    for events in self._by_split.values():
      events.flush()

  def close(self) -> None:
    for events in self._by_split.values():
      events.close()

  def _events(self, split: str) -> Any:
    if split not in self._by_split:
      import tensorboardX  # Slow to import.

      self._by_split[split] = tensorboardX.SummaryWriter(
        os.path.join(self._dir, split),
        # Several jobs may begin to write in the same second.
        filename_suffix=f'.{os.getpid()}',
      )
    return self._by_split[split]


class CompositeWriter:
  """Writes to several writers."""

  def __init__(self, writers: Sequence[Writer]):
    self._writers = tuple(writers)

  def write(self, step: int, scalars: Scalars, split: str = 'train') -> None:
    for writer in self._writers:
      writer.write(step, scalars, split)

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    for writer in self._writers:
      writer.text(step, tag, text, split)

  def flush(self) -> None:
    for writer in self._writers:
      writer.flush()

  def close(self) -> None:
    for writer in self._writers:
      writer.close()


class AsyncWriter:
  """Hands everything to another writer, made and called in a thread.

  After an error nothing more is written: it is logged at once and raised by
  `close`, since a full disk should not lose a training step.
  """

  def __init__(self, make_writer: Callable[[], Writer]):
    self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self._error: Exception | None = None
    self._closed = False
    self._thread = threading.Thread(
      target=self._run, args=(make_writer,), name='summaries', daemon=True
    )
    self._thread.start()

  def write(
    self,
    step: int,
    scalars: Scalars | Callable[[], Scalars],
    split: str = 'train',
  ) -> None:
    make = scalars if callable(scalars) else dict(scalars).copy
    self._put(lambda writer: writer.write(step, _finished(make()), split))

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    self._put(lambda writer: writer.text(step, tag, text, split))

  def flush(self) -> None:
    done = threading.Event()
    self._put(lambda writer: writer.flush())
    self._queue.put(done)
    done.wait()

  def close(self) -> None:
    if not self._closed:
      self._put(lambda writer: writer.close())
      self._closed = True
      self._queue.put(None)
      self._thread.join()
    if self._error is not None:
      raise self._error

  def _put(self, job: Callable[[Writer], None]) -> None:
    if self._closed:
      raise ValueError('this writer is closed; it takes no more values')
    self._queue.put(job)

  def _run(self, make_writer: Callable[[], Writer]) -> None:
    """Runs in the thread."""
    writer = None
    while (job := self._queue.get()) is not None:
      if isinstance(job, threading.Event):
        job.set()
        continue
      if self._error is not None:
        continue
      try:
        writer = writer or make_writer()
        job(writer)
      except Exception as e:  # Kept for close(), which raises it.
        logging.error('Summaries end here: %s: %s', type(e).__name__, e)
        self._error = e


def create_writer(job_log_dir: str, enabled: bool = True) -> Writer:
  """The writer of a run: events and `metrics.jsonl` in its job directory."""
  if not enabled:
    return NoopWriter()

  def make() -> Writer:
    os.makedirs(job_log_dir, exist_ok=True)
    jsonl = JsonlWriter(os.path.join(job_log_dir, METRICS_FILE))
    events = TensorBoardWriter(os.path.join(job_log_dir, SUMMARIES_DIR))
    return CompositeWriter([jsonl, events])

  return AsyncWriter(make)


def _finished(scalars: Scalars) -> dict[str, float]:
  """The values as numbers, waiting for those a device still computes."""
  return {tag: float(np.asarray(value)) for tag, value in scalars.items()}


def _json_number(value: Any) -> float | str:
  """JSON has no infinities: they become strings, which `float` reads."""
  number = float(value)
  return number if np.isfinite(number) else str(number)
