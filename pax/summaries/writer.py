# SPDX-License-Identifier: Apache-2.0
"""Summary writers: TensorBoard, `metrics.jsonl`, services.

The training loop passes values that a device may still be computing; a thread
waits for them and writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from absl import logging

from pax.files import side_files, storage, working_copy
from pax.summaries import backends, jsonl, media, tags, tensorboard

# In the job directory.
METRICS_FILE = 'metrics.jsonl'
SUMMARIES_DIR = 'summaries'

Scalars = Mapping[str, Any]


class ScalarWriter(Protocol):
  """Writes summaries; `split` is a directory, such as `train`."""

  def write(self, step: int, scalars: Scalars, split: str = 'train') -> None:
    """Writes scalars and media, values by tag."""

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    """Writes a text.

    Args:
      step: The training step.
      tag: The tag.
      text: Markdown.
      split: The split.
    """

  def flush(self) -> None:
    """Waits until all values are written and visible to other processes."""

  def close(self) -> None:
    """Flushes and closes."""


class Writer(ScalarWriter, Protocol):
  """Writes summaries that need not be computed yet."""

  def write(
    self,
    step: int,
    scalars: Scalars | Callable[[], Scalars],
    split: str = 'train',
  ) -> None:
    """Writes scalars and media.

    Args:
      step: The training step.
      scalars: Values by tag, which devices may still be computing; or a
        function that returns them, called when they are written.
      split: The split.
    """


class NoopWriter:
  """Writes nothing."""

  def write(self, step: int, scalars: Any, split: str = 'train') -> None:
    pass

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    pass

  def flush(self) -> None:
    pass

  def close(self) -> None:
    pass


class JsonlWriter:
  """Writes JSON lines: step, split, time in seconds, then the tags.

  A job that repeats steps after a restart appends; of lines with the same step
  and split the last one is valid.
  """

  def __init__(self, path: str):
    jsonl.repair(path, parse_record)
    self._file = jsonl.Appender(path)

  def write(self, step: int, scalars: Scalars, split: str = 'train') -> None:
    record = {'step': step, 'split': split, 'time': round(time.time(), 3)}
    values = {
      tag: _json_number(value)
      for tag, value in scalars.items()
      if not isinstance(value, media.Media)
    }
    self._file.append(record | values)

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    pass  # Texts go to TensorBoard only.

  def flush(self) -> None:
    pass  # Nothing is buffered.

  def close(self) -> None:
    self._file.close()


class TolerantWriter:
  """Writes by another writer as long as its files can be written.

  After an OSError, which is a warning, it writes nothing until `flush`.
  """

  def __init__(self, path: str, make_writer: Callable[[], ScalarWriter]):
    """Opens no file.

    Args:
      path: The file or directory, for the warning.
      make_writer: Creates the writer.
    """
    self._path = path
    self._make_writer = make_writer
    self._writer: ScalarWriter | None = None
    self._failed = False

  def write(self, step: int, scalars: Scalars, split: str = 'train') -> None:
    self._try(lambda writer: writer.write(step, scalars, split))

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    self._try(lambda writer: writer.text(step, tag, text, split))

  def flush(self) -> None:
    self._failed = False
    self._try(lambda writer: writer.flush())

  def close(self) -> None:
    self._try(lambda writer: writer.close())

  def _try(self, call: Callable[[ScalarWriter], None]) -> None:
    if self._failed:
      return
    try:
      if self._writer is None:
        self._writer = self._make_writer()
      call(self._writer)
    except OSError as e:
      side_files.report_unwritable(self._path, e)
      self._failed = True
      # Opened again: the file system may have been mounted again.
      writer, self._writer = self._writer, None
      if writer is not None:
        with contextlib.suppress(OSError):
          writer.close()


class CompositeWriter:
  """Writes to several writers."""

  def __init__(self, writers: Sequence[ScalarWriter]):
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
  """Calls another writer in a thread.

  After an error nothing more is written; the error is logged at once and raised
  by `close`.
  """

  def __init__(
    self,
    make_writer: Callable[[], ScalarWriter],
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

    def job(writer: ScalarWriter) -> None:
      writer.write(step, _finished(make(), self._only_aggregates), split)

    self._put(job)

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    self._put(lambda writer: writer.text(step, tag, text, split))

  def flush(self) -> None:
    self._put(lambda writer: writer.flush())
    self._wait()

  def close(self) -> None:
    """Flushes and closes.

    Raises:
      Exception: The first error of writing.
    """
    if not self._closed:
      self._put(lambda writer: writer.close())
      self._closed = True
      self._queue.put(None)
      self._thread.join()
    if self._error is not None:
      raise self._error

  def _put(self, job: Callable[[ScalarWriter], None]) -> None:
    if self._closed:
      raise ValueError('this writer is closed; it accepts no more values')
    self._queue.put(job)
    if self._blocking:
      self._wait()

  def _wait(self) -> None:
    """Returns when the thread has processed all jobs."""
    done = threading.Event()
    self._queue.put(done)
    done.wait()

  def _run(self, make_writer: Callable[[], ScalarWriter]) -> None:
    """Processes jobs in the thread."""
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
      except Exception as e:  # Raised by close().
        logging.error('Writing summaries failed: %s: %s', type(e).__name__, e)
        self._error = e


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterOptions:
  """Options of a summary writer."""

  # The --mode of the job, part of the name of its run in services.
  mode: str = 'train'
  # Whether a thread writes while training continues.
  asynchronous: bool = True
  # Whether summaries that are not aggregated over hosts are dropped.
  only_aggregates: bool = False
  # Project of Weights & Biases; None does not log there.
  wandb_project: str | None = None
  # Experiment of MLflow; None does not log there.
  mlflow_experiment: str | None = None


def create_writer(
  job_log_dir: str,
  enabled: bool = True,
  options: WriterOptions | None = None,
) -> Writer:
  """Returns the writer of a job: events and `metrics.jsonl` in its directory.

  Args:
    job_log_dir: The job directory, which exists.
    enabled: Whether to write at all.
    options: Options; None is the defaults.

  Raises:
    ValueError: The package of a selected service is not installed.
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


def _make(job_log_dir: str, options: WriterOptions) -> ScalarWriter:
  """Creates the writers, in the thread."""
  metrics = os.path.join(job_log_dir, metrics_file(job_log_dir, options.mode))
  events = os.path.join(job_log_dir, SUMMARIES_DIR)
  writers: list[ScalarWriter] = [
    TolerantWriter(metrics, lambda: JsonlWriter(metrics)),
    TolerantWriter(
      events, lambda: tensorboard.TensorBoardWriter(job_log_dir, SUMMARIES_DIR)
    ),
  ]
  if options.wandb_project:
    project = options.wandb_project
    writers.append(backends.WandbWriter(project, job_log_dir, options.mode))
  if options.mlflow_experiment:
    name = options.mlflow_experiment
    writers.append(backends.MlflowWriter(name, job_log_dir, options.mode))
  return CompositeWriter(writers)


def metrics_file(job_log_dir: storage.PathLike, mode: str) -> str:
  """Returns the name of the file of metrics of a job.

  All jobs of a directory append to one file, except in a bucket, where each
  replaces its own.

  Args:
    job_log_dir: The job directory.
    mode: The --mode of the job.
  """
  is_bucket = isinstance(working_copy.origin(job_log_dir), storage.BucketPath)
  return (
    f'{mode}_{METRICS_FILE}' if is_bucket and mode != 'train' else METRICS_FILE
  )


def parse_record(value: Any) -> dict[str, Any]:
  """Returns a record of `metrics.jsonl`.

  Raises:
    TypeError, KeyError, ValueError: It is damaged.
  """
  fields: dict[str, type | tuple[type, ...]] = {
    'step': int,
    'split': str,
    'time': side_files.NUMBER,
  }
  side_files.check_fields(value, fields)
  for tag, number in value.items():
    if tag not in fields:
      float(number)
  return value


def _finished(scalars: Scalars, only_aggregates: bool) -> dict[str, Any]:
  """Returns the values on the host; waits for the devices."""
  return {
    tag: value.on_host() if isinstance(value, media.Media) else float(value)
    for tag, value in scalars.items()
    if not (only_aggregates and isinstance(tag, tags.LocalTag))
  }


def _json_number(value: Any) -> float | str:
  """Returns a JSON number; infinities and NaN as strings that `float` reads."""
  number = float(value)
  return number if np.isfinite(number) else str(number)
