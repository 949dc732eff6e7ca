# SPDX-License-Identifier: Apache-2.0
"""The directory of a job: created only here, locked against other runs.

A job in a bucket has a working copy of its directory.

A directory that is deleted, moved or unmounted while the job runs is not
created anew: the job notices at the next save, waits for it to return, and
ends.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from absl import logging

from pax import coordination_service
from pax.checkpoints import paths
from pax.checkpoints.types import CheckpointTimeoutError
from pax.files import side_files, storage, working_copy
from pax.runner import job_lock, job_log, lease

# Values of --mode of the runs that save checkpoints.
SAVING_MODES = ('train', 'quantize')
# Shortest time between two checks of the training loop.
_CHECK_SECS = 5.0
# Longest time until process 0 has the lock of a bucket, or is refused.
_LOCK_SECS = 300.0
# Time between two checks of a directory that is gone.
_POLL_SECS = 0.5


class JobDirError(ValueError):
  """A job directory that cannot be used; the message has the reason."""


class JobDirGoneError(JobDirError):
  """The job directory was deleted, moved, replaced or unmounted."""


class JobDir:
  """The directory that a run opened, and its identity."""

  def __init__(
    self,
    path: pathlib.Path,
    wait_secs: float = 0.0,
    copy: working_copy.WorkingCopy | None = None,
  ):
    """Opens the directory.

    Args:
      path: The directory.
      wait_secs: How long `check` waits for a directory that is gone.
      copy: The working copy that the directory is; None if it is none.

    Raises:
      OSError: It does not exist.
    """
    self.path = pathlib.Path(os.path.abspath(path))
    self._wait_secs = wait_secs
    self._copy = copy
    self._descriptor = self._open()
    self._lock: job_lock.JobLock | lease.Lease | None = None
    self._run_id: str | None = None
    self._checked_at = time.monotonic()
    # Called after the directory was mounted again, to open its files again.
    self.on_remount: Callable[[], None] = lambda: None

  def lock(self) -> None:
    """Locks the directory for training.

    Raises:
      JobDirError: Another run trains in it.
    """
    try:
      if self._copy is None:
        self._lock = job_lock.JobLock(self.path)
      else:
        self._lock = lease.Lease(self._copy.source)
    except lease.LockedError as e:
      raise JobDirError(str(e)) from None

  def close(self) -> None:
    """Uploads a working copy for the last time, and releases the lock."""
    if self._copy is not None:
      self._copy.close()
    if self._lock is not None:
      self._lock.close()
    os.close(self._descriptor)

  def check(self, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Checks that the path is still the directory that was opened.

    All processes of a job must call it at the same step: all of them end, or
    none.

    Args:
      sleep: Sleeps between two checks of a directory that is gone, for a number
        of seconds; it may return early, as if the time had passed.

    Returns:
      Whether it was gone and returned.

    Raises:
      JobDirGoneError: The directory of a process is gone, and did not return.
      JobDirError: Another run trains in the directory.
    """
    self._checked_at = time.monotonic()
    num_polls = int(self._wait_secs / _POLL_SECS)
    for poll in range(num_polls + 1):
      reason = self.absence()
      if not _in_any_process(reason is not None):
        self._check_lock()
        return poll > 0
      if poll == 0 and num_polls and reason:
        logging.warning(
          '%s; waiting up to %g s for it to return', reason, self._wait_secs
        )
      if poll < num_polls:
        sleep(_POLL_SECS)
    waited = f' and did not return within {self._wait_secs:g} s'
    reason = reason or f'--job_log_dir={self.path} is gone on another host'
    raise JobDirGoneError(reason + (waited if num_polls else ''))

  def check_at_intervals(
    self, sleep: Callable[[float], None] = time.sleep
  ) -> None:
    """Like `check`, every 5 s, in jobs of one process only."""
    is_due = time.monotonic() - self._checked_at > _CHECK_SECS
    if is_due and jax.process_count() == 1:
      self.check(sleep)

  def check_shared(
    self, barriers: coordination_service.Barriers | None = None
  ) -> None:
    """Checks that the processes of a training job have one directory.

    All processes must call it, the first one with the lock. The others look for
    its `.lock`.

    Args:
      barriers: Barriers of the processes; None makes those of the job.

    Raises:
      JobDirError: A process has another directory.
    """
    if self._copy is not None:
      return
    barriers = barriers or coordination_service.Barriers(
      'shared job directory', _LOCK_SECS + self._wait_secs
    )
    other = ''
    try:
      run_id = barriers.wait('the job directory is locked', self._lock_id())[0]
      if run_id and not self._sees_lock(run_id):
        other = f'{self.path} (host {socket.gethostname()})'
      others = barriers.wait('the lock of the job directory is seen', other)
    except coordination_service.MissingProcessesError as e:
      raise JobDirError(str(e)) from None
    for index, other in others.items():
      if other:
        raise JobDirError(
          f'--job_log_dir of process {index} of {len(others)}, {other}, is not'
          ' the directory of process 0: it lacks the .lock of this run. All'
          ' processes need one directory, on a shared file system or in a'
          ' bucket'
        )

  def _lock_id(self) -> str:
    holder = lease.read_holder(self.path)
    return holder['run_id'] if holder else ''

  def _sees_lock(self, run_id: str) -> bool:
    """Whether `.lock` is that of the run; a network file system may be late."""
    deadline, is_late = time.monotonic() + self._wait_secs, False
    while self._lock_id() != run_id:
      if time.monotonic() >= deadline:
        return False
      if not is_late:
        logging.warning(
          '--job_log_dir=%s lacks the .lock of process 0; waiting up to %g s'
          ' for it (--job_dir_wait_secs)',
          self.path,
          self._wait_secs,
        )
      is_late = True
      time.sleep(_POLL_SECS)
    return True

  def upload(self) -> None:
    """Uploads the files of a working copy; a failure is a warning."""
    if self._copy is not None:
      self._copy.try_upload()

  def raise_if_gone(self) -> None:
    """Checks once, in this process only.

    Raises:
      JobDirGoneError: The directory is gone.
    """
    if reason := self.absence():
      raise JobDirGoneError(reason)

  def absence(self) -> str | None:
    """Returns why the path is not the directory that was opened, or None."""
    name = f'--job_log_dir={self.path}'
    opened = os.fstat(self._descriptor)
    try:
      present = os.stat(self.path)
    except FileNotFoundError:
      return f'{name} was {self._fate(opened)}'
    except OSError as e:
      return f'{name} cannot be reached ({e.strerror})'
    if _identity(present) == _identity(opened):
      if holder := lease.read_holder(self.path):
        self._run_id = holder['run_id']
      return None
    if present.st_dev != opened.st_dev and self._is_mounted_again():
      self._reopen()
      return None
    fate = self._fate(opened)
    return f'{name} was {fate}; another directory is in its place'

  def _fate(self, opened: os.stat_result) -> str:
    """What happened to the directory that was opened."""
    if opened.st_nlink == 0:
      return 'deleted'
    with contextlib.suppress(OSError):
      new_path = os.readlink(f'/proc/self/fd/{self._descriptor}')
      is_moved = new_path != str(self.path)
      if is_moved and _identity(os.stat(new_path)) == _identity(opened):
        return f'moved to {new_path}'
    return 'deleted, moved or unmounted'

  def _is_mounted_again(self) -> bool:
    """Whether `.lock` is that of this run: devices are renumbered."""
    holder = lease.read_holder(self.path)
    return holder is not None and holder['run_id'] == self._run_id

  def _reopen(self) -> None:
    """Opens and locks the directory again."""
    os.close(self._descriptor)
    self._descriptor = self._open()
    if self._lock is not None:
      self._lock.close()
      self.lock()
    self.on_remount()

  def _check_lock(self) -> None:
    if self._lock is None:
      return
    try:
      self._lock.check()
    except lease.LockedError as e:
      raise JobDirError(str(e)) from None

  def _open(self) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    return os.open(self.path, flags)


@contextlib.contextmanager
def open_job_dir(
  job_log_dir: str, process: int, mode: str = 'train', wait_secs: float = 0.0
) -> Iterator[JobDir]:
  """Creates the directory, locks it for checkpoints, and logs into it.

  Only one run may save checkpoints in a directory; other modes need no lock.

  Args:
    job_log_dir: the directory.
    process: index of this process; the first one holds the lock.
    mode: the value of --mode.
    wait_secs: how long a check waits for a directory that is gone.

  Raises:
    JobDirError: it is not writable, another run trains in it, or it is gone
      and the run failed therefore.
  """
  side_files.reset_warnings()
  with contextlib.ExitStack() as on_exit:
    try:
      copy = _create_working_copy(job_log_dir)
      path = copy.path if copy else pathlib.Path(job_log_dir)
      log_file = job_log.log_file(str(path), process, mode)
      path.mkdir(parents=True, exist_ok=True)
      directory = JobDir(path, wait_secs, copy)
      on_exit.callback(directory.close)
      if copy is not None:
        _lock_bucket(directory, is_locked=mode in SAVING_MODES)
        copy.download()
      side_files.make_directories(path, job_log.FOLDER)
      handler = job_log.LogFileHandler(log_file)
      directory.on_remount = handler.reopen
      if copy is None and process == 0 and mode in SAVING_MODES:
        directory.lock()
    except OSError as e:
      raise JobDirError(
        f'cannot write to --job_log_dir={job_log_dir}: {e}'
      ) from e
    _check_checkpoints(path)
    on_exit.enter_context(job_log.log_to(handler))
    with _gone_explains_errors(directory):
      yield directory


def _create_working_copy(
  job_log_dir: str,
) -> working_copy.WorkingCopy | None:
  """Returns the working copy of a directory in a bucket; None if it is local.

  Raises:
    JobDirError: A bucket of this kind cannot be used.
  """
  try:
    source = storage.to_path(job_log_dir)
    if isinstance(source, pathlib.Path):
      return None
    storage.check_package(source)
  except ValueError as e:
    raise JobDirError(f'--job_log_dir: {e}') from None
  is_primary = jax.process_index() == 0
  return working_copy.WorkingCopy(source, is_primary=is_primary)


def _lock_bucket(directory: JobDir, *, is_locked: bool) -> None:
  """Returns in all processes when the first one holds the lock.

  Until then a job that ends may still upload its files.

  Args:
    directory: The job directory.
    is_locked: Whether the mode of the job needs the lock.

  Raises:
    JobDirError: Another run trains in it.
  """
  error: Exception | None = None
  try:
    if is_locked and jax.process_index() == 0:
      directory.lock()
  except (JobDirError, OSError) as e:
    error = e
  barriers = coordination_service.Barriers('job directory', _LOCK_SECS)
  try:
    errors = barriers.wait('the job directory is locked', str(error or ''))
  except coordination_service.MissingProcessesError as e:
    raise error or JobDirError(str(e)) from None
  if error or errors[0]:
    raise error or JobDirError(errors[0])


@contextlib.contextmanager
def _gone_explains_errors(directory: JobDir) -> Iterator[None]:
  """Replaces an error by that of the directory, if that is gone."""
  try:
    yield
  except (JobDirError, CheckpointTimeoutError):
    # To look at a directory that hangs would hang, too.
    raise
  except Exception as e:
    if reason := directory.absence():
      raise JobDirGoneError(f'{reason} ({type(e).__name__}: {e})') from e
    raise


def _check_checkpoints(path: pathlib.Path) -> None:
  checkpoints = path / paths.CHECKPOINTS
  if os.path.lexists(checkpoints) and not checkpoints.is_dir():
    raise JobDirError(
      f'{checkpoints} is not a directory; move it, or use another --job_log_dir'
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
  return status.st_dev, status.st_ino


def _in_any_process(flag: bool) -> bool:
  if jax.process_count() == 1:
    return flag
  from jax.experimental import multihost_utils

  return bool(np.any(multihost_utils.process_allgather(np.int32(flag))))
