# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a job whose directory may disappear: `--emergency_dir`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Collection, Iterator

import jax
from absl import logging

from pax import checkpoints
from pax.checkpoints import paths, types
from pax.runner.job_dir import JobDir, JobDirError, JobDirGoneError
from pax.runner.options import UsageError


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """Arguments of the last call of `save`."""

  step: int
  state: types.State
  input_state: types.InputState | None

  @property
  def is_deleted(self) -> bool:
    """Whether a later step has replaced the arrays in place."""
    leaves = jax.tree.leaves(self.state)
    return any(isinstance(x, jax.Array) and x.is_deleted() for x in leaves)


@dataclasses.dataclass(frozen=True)
class EmergencyDir:
  """The directory that receives the last checkpoint of a lost job directory."""

  path: pathlib.Path
  kind: checkpoints.CheckpointType
  options: checkpoints.CheckpointOptions

  def save(self, snapshot: Snapshot) -> str:
    """Saves a checkpoint; returns a sentence with its path.

    Raises:
      CheckpointError: It cannot be written.
    """
    checkpointer = checkpoints.create_checkpointer(
      dataclasses.replace(self.options, asynchronous=False),
      str(self.path),
      self.kind,
    )
    try:
      checkpointer.save(
        snapshot.step, snapshot.state, snapshot.input_state, force=True
      )
      checkpointer.wait()
    finally:
      checkpointer.abandon(0)
    saved = paths.steps(self.path / paths.CHECKPOINTS)[snapshot.step]
    return (
      f'The state of step {snapshot.step} is in {saved}: continue with'
      f' --job_log_dir={self.path}, or move it to the checkpoints of the job'
    )


class GuardedCheckpointer:
  """Saves by another checkpointer while the job directory is in its place.

  If the directory is gone, or a checkpoint cannot be written, it saves the
  state to the emergency directory and ends the job by an error that says so.
  """

  def __init__(
    self,
    checkpointer: checkpoints.Checkpointer,
    directory: JobDir,
    options: checkpoints.CheckpointOptions,
    emergency_dir: EmergencyDir | None,
    sleep: Callable[[float], None] = time.sleep,
  ):
    """Wraps a checkpointer.

    Args:
      checkpointer: Saves into the job directory.
      directory: The job directory.
      options: Those of the checkpointer.
      emergency_dir: Receives the state if the job directory is gone.
      sleep: Waits for a directory to return; see `JobDir.check`.
    """
    self._checkpointer = checkpointer
    self._directory = directory
    self._options = options
    self._emergency_dir = emergency_dir
    self._sleep = sleep
    self._snapshot: Snapshot | None = None

  def is_due(self, step: int, *, force: bool = False) -> bool:
    return self._checkpointer.is_due(step, force=force)

  def save(
    self,
    step: int,
    state: types.State,
    input_state: types.InputState | None = None,
    *,
    force: bool = False,
  ) -> bool:
    """Checks the directory, and saves as the other checkpointer does.

    Args:
      step: The step that the state enters.
      state: The train state.
      input_state: State of the training input.
      force: Whether to save at any step.

    Raises:
      JobDirError: The directory is gone.
      CheckpointError: A checkpoint cannot be written.
    """
    self._snapshot = Snapshot(step, state, input_state)
    with self._rescuing(in_all_processes=True):
      # Not `is_due`: all processes check at the same steps, even if a
      # checkpoint failed in one of them.
      has_returned = False
      if force or step % self._options.save_interval_steps == 0:
        has_returned = self._directory.check(self._sleep)
      else:
        self._directory.check_at_intervals(self._sleep)
    with self._rescuing():
      try:
        return self._checkpointer.save(step, state, input_state, force=force)
      except checkpoints.CheckpointTimeoutError:
        # To look at the directory would hang, too.
        raise
      except (checkpoints.CheckpointError, JobDirGoneError) as e:
        is_gone = self._directory.absence() is not None
        was_gone = has_returned or isinstance(e, JobDirGoneError)
        if not (is_gone or was_gone):
          raise
        if jax.process_count() == 1:
          # Waits for its return.
          self._directory.check(self._sleep)
          is_gone = False
        logging.warning('%s', e)
        if is_gone:
          # Other processes may be steps ahead: all end at the next check.
          return False
        # Saves this step if it is due.
        return self._checkpointer.save(step, state, input_state, force=force)

  def latest_step(self) -> int | None:
    return self._checkpointer.latest_step()

  def set_frozen_leaves(self, leaves: Collection[str]) -> None:
    self._checkpointer.set_frozen_leaves(leaves)

  def pin(self, step: int, *, permanently: bool = False) -> None:
    self._checkpointer.pin(step, permanently=permanently)

  def unpin(self, step: int) -> None:
    self._checkpointer.unpin(step)

  def restore(
    self, abstract: types.State, step: int | None = None
  ) -> checkpoints.Restored:
    return self._checkpointer.restore(abstract, step)

  def wait(self) -> None:
    with self._rescuing():
      self._checkpointer.wait()

  def close(self) -> None:
    with self._rescuing():
      self._checkpointer.close()

  def abandon(self, timeout_secs: float) -> None:
    self._checkpointer.abandon(timeout_secs)

  @contextlib.contextmanager
  def _rescuing(self, *, in_all_processes: bool = False) -> Iterator[None]:
    """Saves elsewhere if the block fails.

    Args:
      in_all_processes: Whether a directory that is gone fails all processes.
    """
    try:
      yield
    except (checkpoints.CheckpointError, JobDirError) as e:
      kind, message = type(e), str(e)
      is_common = in_all_processes and isinstance(e, JobDirGoneError)
      is_hanging = isinstance(e, checkpoints.CheckpointTimeoutError)
      if not (is_common or is_hanging):
        if reason := self._directory.absence():
          kind, message = JobDirGoneError, reason
      if rescue := self._rescue(is_common or jax.process_count() == 1):
        message = f'{message}. {rescue}'
      elif kind is JobDirGoneError:
        message += (
          '. It is not created anew; steps after its last checkpoint are lost'
          ' (--emergency_dir saves them)'
        )
      raise kind(message) from e

  def _rescue(self, is_possible: bool) -> str:
    """Saves elsewhere; returns the result as a sentence.

    Args:
      is_possible: Whether all processes do the same.
    """
    if self._emergency_dir is None or not self._options.saving:
      return ''
    snapshot = self._snapshot
    if not is_possible or snapshot is None or snapshot.is_deleted:
      return 'No state was saved to --emergency_dir'
    try:
      return self._emergency_dir.save(snapshot)
    except (OSError, checkpoints.CheckpointError) as e:
      return f'Saving to --emergency_dir failed too: {e}'


def check_emergency_dir(path: str, job_log_dir: str) -> pathlib.Path:
  """Returns the emergency directory, created if it is missing.

  Args:
    path: the value of --emergency_dir.
    job_log_dir: the job directory.

  Raises:
    UsageError: it is not writable, is inside of the job directory, or has
      checkpoints.
  """
  name = f'--emergency_dir={path}'
  directory = pathlib.Path(os.path.realpath(path))
  if '://' in path:
    raise UsageError(
      f'{name} must be a directory of a file system, got a URL; use a mounted'
      ' directory'
    )
  if directory.is_relative_to(os.path.realpath(job_log_dir)):
    raise UsageError(
      f'{name} is inside of --job_log_dir={job_log_dir}; use a directory on'
      ' another file system'
    )
  try:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):
      pass
  except OSError as e:
    raise UsageError(f'cannot write to {name}: {e}') from e
  steps = paths.steps(directory / paths.CHECKPOINTS)
  if steps:
    raise UsageError(
      f'{name} has a checkpoint of step {max(steps)}, which a job saved when'
      f' its directory was gone: continue with --job_log_dir={path}, or move it'
      ' to the checkpoints of the job'
    )
  return directory
