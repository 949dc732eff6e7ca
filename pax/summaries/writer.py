# SPDX-License-Identifier: Apache-2.0
"""Where what a run reports goes: TensorBoard, `metrics.jsonl`, services.

The training loop hands over values that a device may still be computing; a
thread waits for them and writes, so that the loop never does.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from absl import logging

from pax.summaries import backends, jsonl, media, tags, tensorboard

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
    """Records numbers and media by tag; jax may still compute them.

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
    self._file = jsonl.open_to_append(path)

  def write(self, step: int, scalars: Scalars, split: str = 'train') -> None:
    record = {'step': step, 'split': split, 'time': round(time.time(), 3)}
    values = {
      tag: _json_number(value)
      for tag, value in scalars.items()
      if not isinstance(value, media.Media)
    }
    jsonl.append(self._file, record | values)

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    pass  # Texts are for people, in TensorBoard.

  def flush(self) -> None:
    self._file.flush()

  def close(self) -> None:
    self._file.close()


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

  def __init__(
    self,
    make_writer: Callable[[], Writer],
    only_aggregates: bool = False,
    *,
    blocking: bool = False,
  ):
    """Starts the thread.

    Args:
      make_writer: Creates the writer, in the thread.
      only_aggregates: Whether summaries with a `LocalTag` are dropped.
      blocking: Whether each call returns only when its values are written.
    """
    self._only_aggregates = only_aggregates
    self._blocking = blocking
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

    def job(writer: Writer) -> None:
      writer.write(step, _finished(make(), self._only_aggregates), split)

    self._put(job)

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    self._put(lambda writer: writer.text(step, tag, text, split))

  def flush(self) -> None:
    self._put(lambda writer: writer.flush())
    self._wait()

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
    if self._blocking:
      self._wait()

  def _wait(self) -> None:
    """Returns when the thread has processed all jobs."""
    done = threading.Event()
    self._queue.put(done)
    done.wait()

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterOptions:
  """What is written, and where beside the job directory."""

  # Which job of the directory writes, as in --mode.
  mode: str = 'train'
  # Whether a thread writes while training continues.
  asynchronous: bool = True
  # Leaves out what layers and learners record of one host alone.
  only_aggregates: bool = False
  # A project of Weights & Biases.
  wandb_project: str | None = None
  # An experiment of MLflow.
  mlflow_experiment: str | None = None


def create_writer(
  job_log_dir: str,
  enabled: bool = True,
  options: WriterOptions | None = None,
) -> Writer:
  """The writer of a run: events and `metrics.jsonl` in its job directory.

  Raises:
    ValueError: a service is asked for whose package is not installed.
  """
  if not enabled:
    return NoopWriter()
  options = options or WriterOptions()
  if options.wandb_project:
    backends.check('--wandb_project', 'wandb')
  if options.mlflow_experiment:
    backends.check('--mlflow_experiment', 'mlflow')
  return AsyncWriter(
    lambda: _make(job_log_dir, options),
    options.only_aggregates,
    blocking=not options.asynchronous,
  )


def _make(job_log_dir: str, options: WriterOptions) -> Writer:
  """Runs in the thread of the writer."""
  os.makedirs(job_log_dir, exist_ok=True)
  writers: list[Writer] = [
    JsonlWriter(os.path.join(job_log_dir, METRICS_FILE)),
    tensorboard.TensorBoardWriter(os.path.join(job_log_dir, SUMMARIES_DIR)),
  ]
  if options.wandb_project:
    project = options.wandb_project
    writers.append(backends.WandbWriter(project, job_log_dir, options.mode))
  if options.mlflow_experiment:
    name = options.mlflow_experiment
    writers.append(backends.MlflowWriter(name, job_log_dir, options.mode))
  return CompositeWriter(writers)


def _finished(scalars: Scalars, only_aggregates: bool) -> dict[str, Any]:
  """The values on the host, waiting for those a device still computes."""
  return {
    tag: value.on_host() if isinstance(value, media.Media) else float(value)
    for tag, value in scalars.items()
    if not (only_aggregates and isinstance(tag, tags.LocalTag))
  }


def _json_number(value: Any) -> float | str:
  """JSON has no infinities: they become strings, which `float` reads."""
  number = float(value)
  return number if np.isfinite(number) else str(number)
