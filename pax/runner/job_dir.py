# SPDX-License-Identifier: Apache-2.0
"""The directory of a job: created, locked against other runs, with logs."""

from __future__ import annotations

import contextlib
import fcntl
import logging as std_logging
import os
import pathlib
import sys
import time
from collections.abc import Iterator

from absl import logging

_LOCK = '.lock'
_LOGS = 'logs'
_POLL_SECS = 0.1
_FORMAT = '%(asctime)s %(levelname)s %(name)s %(message)s'


class JobDirError(ValueError):
  """A job directory that cannot be used; the message has the reason."""


@contextlib.contextmanager
def open_job_dir(
  job_log_dir: str, process: int, mode: str = 'train'
) -> Iterator[None]:
  """Creates the directory, locks it for training, and logs into it.

  Only one run may train in a directory; other modes need no lock.

  Args:
    job_log_dir: the directory.
    process: index of this process; the first one holds the lock.
    mode: the value of --mode.

  Raises:
    JobDirError: it is not writable, or another run trains in it.
  """
  if '://' in job_log_dir:
    raise JobDirError(
      f'--job_log_dir={job_log_dir} is no path; mount the bucket, such as with'
      ' gcsfuse, and use the path of the mount'
    )
  path = pathlib.Path(job_log_dir)
  try:
    (path / _LOGS).mkdir(parents=True, exist_ok=True)
    lock = (path / _LOCK).open('a')
    handler = std_logging.FileHandler(log_file(job_log_dir, process, mode))
  except OSError as e:
    raise JobDirError(
      f'cannot write to --job_log_dir={job_log_dir}: {e}'
    ) from e
  with lock, _log_handler(handler):
    if process == 0 and mode == 'train':
      _lock(lock.fileno(), job_log_dir)
    yield


def wait_until_free(job_log_dir: str, timeout_secs: float) -> None:
  """Waits until no run trains in the directory, or for `timeout_secs`."""
  path = pathlib.Path(job_log_dir) / _LOCK
  deadline = time.monotonic() + timeout_secs
  while path.exists() and time.monotonic() < deadline:
    with path.open('a') as lock:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
      except BlockingIOError:
        time.sleep(_POLL_SECS)
      except OSError:
        return  # The file system has no locks.


def log_file(
  job_log_dir: str, process: int, mode: str = 'train'
) -> pathlib.Path:
  """Returns the log file of a process of the job."""
  return pathlib.Path(job_log_dir) / _LOGS / f'{mode}_{process}.log'


def log_to_console() -> None:
  """Logs warnings to stderr as plain lines; the log file has all levels."""
  logging.set_verbosity(logging.INFO)
  root = std_logging.getLogger()
  for handler in root.handlers[:]:
    if type(handler) is std_logging.StreamHandler:
      # sys.stderr may be another stream by now.
      root.removeHandler(handler)
  console = std_logging.StreamHandler(sys.stderr)
  console.setLevel(std_logging.WARNING)
  # The file has tracebacks; `main` prints the error.
  console.addFilter(lambda record: record.exc_info is None)
  console.setFormatter(std_logging.Formatter('pax: %(message)s'))
  root.addHandler(console)


@contextlib.contextmanager
def _log_handler(handler: std_logging.Handler) -> Iterator[None]:
  root = std_logging.getLogger()
  handler.setLevel(std_logging.INFO)
  handler.setFormatter(std_logging.Formatter(_FORMAT))
  root.addHandler(handler)
  try:
    yield
  except Exception:
    logging.exception('The run failed')
    raise
  finally:
    root.removeHandler(handler)
    handler.close()


def _lock(descriptor: int, job_log_dir: str) -> None:
  """Locks an open file; the system unlocks it when the process ends."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise JobDirError(
      f'another process trains in --job_log_dir={job_log_dir}; stop it or'
      ' use another directory'
    ) from None
  except OSError as e:
    logging.warning('Cannot lock %s (%s)', job_log_dir, e)
  os.truncate(descriptor, 0)
  os.write(descriptor, f'{os.getpid()}\n'.encode())
