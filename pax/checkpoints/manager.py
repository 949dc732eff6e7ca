# SPDX-License-Identifier: Apache-2.0
"""Checkpointer: saves the train state at intervals and restores it."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from typing import Any, Protocol

import jax
from absl import logging

from pax import coordination_service
from pax.checkpoints import (
  agreement,
  checkpoint_reader,
  frozen_checkpoint,
  paths,
  pins,
  read_deadline,
  reading,
  replica_broadcast,
  transformations,
  write_deadline,
  writing,
)
from pax.checkpoints.formats import layouts
from pax.checkpoints.types import (
  CheckpointError,
  CheckpointOptions,
  CheckpointTimeoutError,
  CheckpointType,
  CorruptCheckpointError,
  InputState,
  JobFunctions,
  LeafDict,
  Restored,
  State,
)
from pax.files import atomic_file, storage
from praxis import base_input


class Checkpointer(Protocol):
  """Saves and restores the train state of a job."""

  def is_due(self, step: int, *, force: bool = False) -> bool:
    """Returns whether `save` with these arguments would save."""
    ...

  def save(
    self,
    step: int,
    state: State,
    input_state: InputState | None = None,
    *,
    force: bool = False,
  ) -> bool:
    """Saves if `step` is due or `force` is set; returns whether it saved.

    Args:
      step: The step that the state enters.
      state: The train state; its arrays may be donated afterwards.
      input_state: State of the training input before the batch of `step`.
      force: Whether to save at any step.

    Raises:
      CheckpointError: This or the previous checkpoint cannot be written.
    """
    ...

  def latest_step(self) -> int | None:
    """Returns the step of the newest checkpoint; None if there is none."""
    ...

  def set_frozen_leaves(self, leaves: Collection[str]) -> None:
    """Sets the leaves that are saved once, in a checkpoint of their own.

    No step changes them; the checkpoints of steps refer to this one.

    Args:
      leaves: Names of leaves; none are saved in each checkpoint, too.
    """
    ...

  def pin(self, step: int, *, permanently: bool = False) -> None:
    """Exempts the checkpoint of `step` from deletion until `unpin`.

    Pins last as long as the checkpointer; the step need not be saved yet.

    Args:
      step: The step.
      permanently: Whether restarted jobs exempt the checkpoint, too.
    """
    ...

  def unpin(self, step: int) -> None:
    """Lets the checkpoint of `step` expire, unless pinned permanently."""
    ...

  def restore(self, abstract: State, step: int | None = None) -> Restored:
    """Returns the newest checkpoint or that of `step`.

    Args:
      abstract: Shapes, dtypes and shardings of the state.
      step: The step; None is the newest.

    Raises:
      CheckpointError: There is none, or it is of another model.
      CorruptCheckpointError: Its files differ from what was written.
    """
    ...

  def wait(self) -> None:
    """Waits until all checkpoints are complete; raises the error of writing."""
    ...

  def close(self) -> None:
    """Waits and releases the thread."""
    ...

  def abandon(self, timeout_secs: float) -> None:
    """Closes after an error: waits at most `timeout_secs`, raises nothing."""
    ...


class FileCheckpointer:
  """Keeps checkpoints in a directory, usually `<job_log_dir>/checkpoints`.

  `save` copies the state to the host and returns; a thread writes the files. A
  save waits for the previous one.
  """

  def __init__(
    self,
    options: CheckpointOptions,
    directory: storage.Path,
    kind: CheckpointType,
    transforms: transformations.Transformations,
    job: JobFunctions,
  ):
    self._transforms = transforms
    self._options = options
    self._job = job
    self._kind = kind
    self._directory = directory
    self._layout = layouts.layout_of(kind, use_ocdbt=options.use_ocdbt)
    self._barriers = coordination_service.Barriers(
      f'{directory.parent.name}.{directory.name}', options.timeout_secs
    )
    self._deadline = write_deadline.WriteDeadline(
      directory, options.timeout_secs, job.end_process
    )
    self._pool = futures.ThreadPoolExecutor(1, 'checkpoint')
    self._writing: futures.Future[None] | None = None
    self._last_step = self.latest_step()
    self._frozen = frozen_checkpoint.FrozenCheckpoint()
    self._is_clean = False
    # Whether a save has hung: its thread may never end.
    self._is_hanging = False
    self._has_folder = False
    # Replaced, never modified: the writing thread reads it.
    self._permanently_pinned = pins.read(str(directory.parent))
    self._pinned = self._permanently_pinned
    # While the step compiles.
    threading.Thread(target=self._layout.import_libraries, daemon=True).start()

  def is_due(self, step: int, *, force: bool = False) -> bool:
    is_due = force or step % self._options.save_interval_steps == 0
    return is_due and self._options.saving and step != self._last_step

  @property
  def last_step(self) -> int | None:
    """The newest step, complete or being written; None if there is none."""
    return self._last_step

  def latest_step(self) -> int | None:
    return max(paths.steps(self._directory), default=None)

  def set_frozen_leaves(self, leaves: Collection[str]) -> None:
    self._frozen.set_frozen_leaves(leaves)

  def pin(self, step: int, *, permanently: bool = False) -> None:
    self._pinned |= {step}
    if permanently:
      self._permanently_pinned |= {step}
      if jax.process_index() == 0:
        pins.add(str(self._directory.parent), step)

  def unpin(self, step: int) -> None:
    self._pinned = (self._pinned - {step}) | self._permanently_pinned

  def save(
    self,
    step: int,
    state: State,
    input_state: InputState | None = None,
    *,
    force: bool = False,
    items: Mapping[str, Callable[[pathlib.Path], None]] | None = None,
  ) -> bool:
    """Saves if `step` is due or `force` is set; returns whether it saved.

    Args:
      step: The step that the state enters.
      state: The train state; its arrays may be donated afterwards.
      input_state: State of the training input before the batch of `step`.
      force: Whether to save at any step.
      items: Functions that write further folders, by name; the save waits for
        them, because nothing copies their data.

    Raises:
      CheckpointError: This or the previous checkpoint cannot be written.
      ValueError: The state has PRNG keys.
    """
    self.check_for_errors()
    if not self.is_due(step, force=force):
      return False
    self.wait()
    if not self._is_clean:
      # Only at the first save: another job may be writing until then.
      self._remove_temporary_files()
      self._is_clean = True
    text = (
      None if input_state is None else base_input.state_to_json(input_state)
    )
    parts = self._split(state, step)
    contents = [
      writing.Contents(
        self._layout.snapshot(parts.own),
        step,
        text,
        frozen_checkpoint=parts.name,
        items=items or {},
      )
    ]
    if parts.frozen is not None:
      contents.append(
        writing.Contents(self._layout.snapshot(parts.frozen), step)
      )
    self._writing = self._pool.submit(self._write, *contents)
    self._last_step = step
    if items or not self._options.asynchronous:
      self.wait()
    return True

  def _split(self, state: State, step: int) -> frozen_checkpoint.Split:
    """Returns the leaves to save, and the frozen ones if none has them yet."""
    leaves = paths.flatten(state)
    if not self._frozen.is_used(leaves):
      return frozen_checkpoint.Split(state, None, None)
    with read_deadline.limiting(self._directory):
      name = self._frozen.name_to_use(leaves, self._directory, step)
    names = agreement.exchange(
      name, self._barriers, 'the frozen checkpoint has a name'
    )
    self._frozen.use(names[0])
    return self._frozen.split(state, leaves)

  def restore(self, abstract: State, step: int | None = None) -> Restored:
    """Returns the newest checkpoint or that of `step`.

    With `CheckpointOptions.skips_corrupt` the newest that is not corrupt; those
    after it are renamed, so that their steps can be saved again.

    Raises:
      CheckpointError: There is none, or it is of another model.
      CorruptCheckpointError: Its files differ from what was written.
    """
    self.wait()
    available = self._available()
    candidates = sorted(available, reverse=True) if step is None else [step]
    if not candidates or candidates[0] not in available:
      raise reading.missing_error(self._directory, step, available)
    if not self._options.skips_corrupt:
      candidates = candidates[:1]
    errors: dict[storage.Path, CorruptCheckpointError] = {}
    for candidate in candidates:
      path = available[candidate]
      try:
        restored = self._restore_candidate(abstract, candidate, path)
      except CorruptCheckpointError as e:
        errors[path] = e
      else:
        self._move_aside(errors)
        return restored
    raise self._none_is_intact(errors)

  def _none_is_intact(
    self, errors: Mapping[storage.Path, CorruptCheckpointError]
  ) -> CorruptCheckpointError:
    """Returns the error of a restore that renamed nothing.

    Args:
      errors: Those of the candidates, newest first.
    """
    newest = next(iter(errors.values()))
    if len(errors) == 1:
      return newest
    # Without its advice to continue from the checkpoint before it.
    damage = newest.__cause__ or newest
    return CorruptCheckpointError(
      f'none of the {len(errors)} checkpoints in {self._directory} is intact;'
      f' of the newest, {damage}. Nothing was changed. To start from step 0,'
      ' move them aside and run again:'
      f' {paths.move_aside_command(self._directory)}'
    )

  def _restore_candidate(
    self, abstract: State, step: int, path: storage.Path
  ) -> Restored:
    try:
      return self._restore_step(abstract, step, path)
    except CorruptCheckpointError as e:
      if not isinstance(path, storage.BucketPath):
        raise
      # The service may have answered with other bytes.
      logging.warning('%s; reading it once more', e)
      return self._restore_step(abstract, step, path)

  def _restore_step(
    self, abstract: State, step: int, path: storage.Path
  ) -> Restored:
    error: CheckpointError | None = None
    wanted = paths.flatten(abstract)
    leaves: LeafDict = {}
    replica = self._find_replica(wanted)
    readers = replica.readers if replica else range(jax.process_count())
    try:
      checkpoint = checkpoint_reader.CheckpointReader(path, readers)
      if jax.process_index() in readers:
        own = replica.on_first_replica(wanted) if replica else wanted
        leaves = self._transforms.read(checkpoint, own, is_full=True)
    except CheckpointError as e:
      error = e
    # Each process compares the checksums of a part of the files.
    self._raise_if_any(error, f'{path.name} is restored')
    if replica:
      leaves = replica.broadcast(wanted, leaves)
      logging.info('Processes %s have read the checkpoint', readers)
    unchanged = self._transforms.unchanged(checkpoint.shapes, wanted)
    self._frozen.set_restored(
      checkpoint.frozen_checkpoint, unchanged & checkpoint.frozen_leaves
    )
    self._job.print_line(f'step {step}: restored from {path}')
    return Restored(
      paths.unflatten(abstract, leaves),
      reading.select_input_state(checkpoint),
      step,
    )

  def _find_replica(
    self, leaves: LeafDict
  ) -> replica_broadcast.ReplicaBroadcast | None:
    # Transformations compute on the mesh of all processes.
    if self._options.single_replica_restore and self._transforms.is_identity:
      return replica_broadcast.find(leaves)
    return None

  def _available(self) -> dict[int, storage.Path]:
    """Returns the checkpoints by step, with the newest of all processes.

    Raises:
      CheckpointError: This process does not see the newest.
    """
    with read_deadline.limiting(self._directory):
      available = paths.steps(self._directory)
    texts = agreement.exchange(
      str(max(available, default=-1)),
      self._barriers,
      'the newest checkpoint is known',
    )
    newest = max(map(int, texts.values()))
    if newest not in (-1, *available):
      writing.wait_until(
        lambda: newest in paths.steps(self._directory),
        f'the checkpoint of step {newest} in {self._directory}',
        self._directory.parent,
      )
      available = paths.steps(self._directory)
    return available

  def _remove_temporary_files(self) -> None:
    """Removes those of killed jobs before any process writes."""
    if jax.process_index() == 0:
      paths.clean(self._directory)
      frozen_checkpoint.remove_unused(self._directory)
    self._raise_if_any(None, 'temporary files are removed')

  def _raise_if_any(self, error: Exception | None, barrier: str) -> None:
    """Raises the error of any process, in all of them."""
    if error := agreement.agree(error, self._barriers, barrier):
      raise error

  def _move_aside(
    self, corrupt: Mapping[storage.Path, CorruptCheckpointError]
  ) -> None:
    """Renames corrupt checkpoints, which all processes have found."""
    if not corrupt:
      return
    error: CheckpointError | None = None
    if jax.process_index() == 0:
      for path, damage in corrupt.items():
        renamed = paths.set_aside_path(path)
        logging.warning('%s', damage)
        try:
          storage.move(path, renamed)
        except OSError as e:
          error = CheckpointError(f'cannot rename {path} to {renamed}: {e}')
        else:
          logging.warning(
            '--on_corrupt_checkpoint=fallback renamed it to %s', renamed
          )
    self._raise_if_any(error, 'corrupt checkpoints are renamed')
    self._last_step = self.latest_step()

  def wait(self) -> None:
    pending, self._writing = self._writing, None
    if pending:
      try:
        self._deadline.wait(pending)
      except CheckpointTimeoutError:
        # Every call for the directory would hang.
        self._is_hanging = True
        raise
      except BaseException:
        # The step may be saved again.
        self._last_step = self.latest_step()
        self._frozen.forget_unwritten()
        raise

  def check_for_errors(self) -> None:
    """Raises the error of a save that has failed, or hangs."""
    if self._writing and (self._writing.done() or self._deadline.is_over()):
      self.wait()

  def close(self) -> None:
    try:
      self.wait()
    finally:
      self._pool.shutdown(wait=not self._is_hanging)

  def abandon(self, timeout_secs: float) -> None:
    pending, self._writing = self._writing, None
    if pending and not futures.wait([pending], timeout_secs).done:
      logging.warning('A checkpoint was still being written')
    elif pending and (error := pending.exception()):
      logging.warning('%s', error)
    self._pool.shutdown(wait=False)

  def _write(
    self,
    contents: writing.Contents[Any],
    frozen: writing.Contents[Any] | None = None,
  ) -> None:
    """Writes a checkpoint, and before it the frozen one if it is new."""
    with self._deadline.limiting():
      if frozen and contents.frozen_checkpoint:
        self._write_checkpoint(contents.frozen_checkpoint, frozen)
        self._frozen.mark_written()
      name = paths.checkpoint_name(contents.step, self._kind)
      self._write_checkpoint(name, contents)
      if jax.process_index() == 0:
        if contents.frozen_checkpoint:
          frozen_checkpoint.mark_used(
            self._directory, contents.frozen_checkpoint
          )
        self._delete_expired(contents.step)
    # A terminal that blocks is no file system that hangs.
    if jax.process_index() == 0:
      path = self._directory / name
      self._job.print_line(f'step {contents.step}: saved in {path}')

  def _write_checkpoint(
    self, name: str, contents: writing.Contents[Any]
  ) -> None:
    final = self._directory / name
    try:
      writing.write(
        self._layout,
        final,
        contents,
        self._barriers,
        lambda: self._prepare(final),
        self._deadline.paused,
      )
    except OSError as e:
      raise CheckpointError(
        f'cannot write {final}: {e}; the checkpoints before it are untouched'
      ) from e

  def _prepare(self, final: storage.Path) -> None:
    """Makes the folder of the checkpoints, once.

    Raises:
      CheckpointError: The name of the checkpoint is taken.
      OSError: The folder cannot be made.
    """
    self._job.before_write()
    if paths.is_committed(final):
      raise CheckpointError(
        f'cannot write {final}: the name is taken, and nothing is overwritten;'
        f' move it aside: {paths.move_aside_command(final)}'
      )
    if not self._has_folder:
      atomic_file.make_folder(self._directory, parents=True)
      self._has_folder = True
    # Without parents: a job directory that vanished must not be created again.
    self._directory.mkdir(exist_ok=True)

  def _delete_expired(self, saved_step: int) -> None:
    try:
      available = paths.steps(self._directory)
      times = {s: paths.saved_at(path) for s, path in available.items()}
      for step in self._options.steps_to_delete(times, self._pinned):
        if step == saved_step:
          continue
        if self._options.todelete_subdir:
          paths.archive(available[step], self._options.todelete_subdir)
        else:
          paths.delete(available[step])
    except OSError as e:
      # The new checkpoint is complete, and the next save tries again.
      logging.warning('Cannot delete expired checkpoints: %s', e)


def create_checkpointer(
  options: CheckpointOptions,
  job_log_dir: str,
  kind: CheckpointType = CheckpointType.GDA,
  restore_transformations: Mapping[str, Any] | None = None,
  job: JobFunctions | None = None,
) -> Checkpointer:
  """Returns the checkpointer of a job directory.

  Args:
    options: When to save, and what to keep.
    job_log_dir: The job directory.
    kind: The on-disk format of new checkpoints; any format is read.
    restore_transformations: `task.train.restore_transformations`, built.
    job: Functions of the job; None are the defaults.
  """
  transforms = transformations.Transformations(restore_transformations)
  directory = paths.checkpoints_folder(job_log_dir)
  return FileCheckpointer(
    options, directory, kind, transforms, job or JobFunctions()
  )
