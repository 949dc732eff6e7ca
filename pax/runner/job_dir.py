# SPDX-License-Identifier: Apache-2.0
"""The directory of a job: writable, held by this run alone, with its logs."""

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
  """A job directory that cannot be used; the message says why."""


@contextlib.contextmanager
def open_job_dir(
  job_log_dir: str, process: int, mode: str = 'train'
) -> Iterator[None]:
  """Makes the directory, holds it against other runs, and logs into it.

  Only one run may train in it; others may look at its checkpoints meanwhile.

  Raises:
    JobDirError: it cannot be written, or another run is at work in it.
  """
  if '://' in job_log_dir:
    raise JobDirError(
      f'--job_log_dir={job_log_dir} is no path; mount the bucket, as with'
      ' gcsfuse, and give the path of the mount'
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
  with lock, _handling(handler):
    if process == 0 and mode == 'train':
      _hold(lock.fileno(), job_log_dir)
    yield


def wait_until_free(job_log_dir: str, timeout_secs: float) -> None:
  """Returns when no other run trains in the directory, or it took too long."""
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
        return  # There are no locks here.


def log_file(
  job_log_dir: str, process: int, mode: str = 'train'
) -> pathlib.Path:
  """Where a process of the job logs."""
  return pathlib.Path(job_log_dir) / _LOGS / f'{mode}_{process}.log'


def log_to_console() -> None:
  """Sends warnings to stderr as plain lines; the log file has the rest."""
  logging.set_verbosity(logging.INFO)
  root = std_logging.getLogger()
  for old in root.handlers[:]:
    if type(old) is std_logging.StreamHandler:
      # What stderr is may have changed since.
      root.removeHandler(old)
  console = std_logging.StreamHandler(sys.stderr)
  console.setLevel(std_logging.WARNING)
  # Tracebacks are for the file; `main` says what went wrong.
  console.addFilter(lambda record: record.exc_info is None)
  console.setFormatter(std_logging.Formatter('pax: %(message)s'))
  root.addHandler(console)


@contextlib.contextmanager
def _handling(handler: std_logging.Handler) -> Iterator[None]:
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


def _hold(descriptor: int, job_log_dir: str) -> None:
  """Locks the open file; the system unlocks it however the process ends."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise JobDirError(
      f'another process is at work in --job_log_dir={job_log_dir}; stop it or'
      ' use another directory'
    ) from None
  except OSError as e:
    logging.warning('Cannot lock %s (%s)', job_log_dir, e)
  os.truncate(descriptor, 0)
  os.write(descriptor, f'{os.getpid()}\n'.encode())
