# SPDX-License-Identifier: Apache-2.0
"""The log of a job: a file in its directory, and warnings on the console."""

from __future__ import annotations

import contextlib
import logging as std_logging
import os
import pathlib
from collections.abc import Iterator

from absl import logging

from pax.files import side_files
from pax.summaries import live_line

FOLDER = 'logs'
_FORMAT = '%(asctime)s %(levelname)s %(name)s %(message)s'


class LogFileHandler(std_logging.Handler):
  """Appends each record to a file, unbuffered.

  Only the first error of writing is reported.
  """

  def __init__(self, path: pathlib.Path):
    """Opens or creates the file.

    Raises:
      OSError: It cannot be opened.
    """
    super().__init__(std_logging.INFO)
    self.setFormatter(std_logging.Formatter(_FORMAT))
    self._path = path
    self._has_failed = False
    self._is_closed = False
    self._descriptor = self._open()

  def emit(self, record: std_logging.LogRecord) -> None:
    if self._is_closed:
      # A thread still logs; the descriptor may be another file's.
      return
    line = f'{self.format(record)}\n'.encode(errors='backslashreplace')
    try:
      while line:
        line = line[os.write(self._descriptor, line) :]
    except OSError as e:
      if not self._has_failed:
        self._has_failed = True
        side_files.report_unwritable(self._path, e)

  def reopen(self) -> None:
    """Opens the file again, after its file system was mounted again."""
    with side_files.tolerate_errors(self._path):
      descriptor = self._open()
      # Atomic: other threads may be writing.
      os.dup2(descriptor, self._descriptor, inheritable=False)
      os.close(descriptor)

  def close(self) -> None:
    # No thread is within `emit` then.
    self.acquire()
    try:
      if not self._is_closed:
        self._is_closed = True
        with contextlib.suppress(OSError):
          os.close(self._descriptor)
    finally:
      self.release()
    super().close()

  def _open(self) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    return os.open(self._path, flags, 0o666)


def log_file(
  job_log_dir: str, process: int, mode: str = 'train'
) -> pathlib.Path:
  """Returns the log file of a process of the job."""
  return pathlib.Path(job_log_dir) / FOLDER / f'{mode}_{process}.log'


def log_to_console() -> None:
  """Logs warnings to stderr as plain lines; the log file has all levels."""
  logging.set_verbosity(logging.INFO)
  root = std_logging.getLogger()
  for handler in root.handlers[:]:
    if type(handler) in (std_logging.StreamHandler, live_line.ConsoleHandler):
      root.removeHandler(handler)
  console = live_line.ConsoleHandler()
  console.setLevel(std_logging.WARNING)
  # The file has tracebacks; `main` prints the error.
  console.addFilter(lambda record: record.exc_info is None)
  console.setFormatter(std_logging.Formatter('pax: %(message)s'))
  root.addHandler(console)


@contextlib.contextmanager
def log_to(handler: LogFileHandler) -> Iterator[None]:
  """Logs to a file while the context is open; logs an error that leaves it."""
  root = std_logging.getLogger()
  root.addHandler(handler)
  try:
    yield
  except Exception:
    logging.exception('The run failed')
    raise
  finally:
    root.removeHandler(handler)
    handler.close()
