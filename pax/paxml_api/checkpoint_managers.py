# SPDX-License-Identifier: Apache-2.0
"""A directory of checkpoints with the interface of paxml's manager."""

from __future__ import annotations

import dataclasses
import datetime
import os
import pathlib
from typing import Any

import jax
from absl import logging

from pax import storage, train_states
from pax.checkpoints import (
  manager,
  paths,
  reading,
  state_restore,
  transformations,
)
from pax.checkpoints.types import (
  CheckpointError,
  CheckpointOptions,
  CheckpointType,
)
from pax.paxml_api import (
  checkpoint_metadata,
  checkpoint_version,
  state_handlers,
)
from praxis import base_input
from praxis.pytypes import Nested

TrainState = train_states.TrainState
Path = pathlib.Path
PathLike = str | os.PathLike[str]
# Shapes of a train state, or None.
OptionalNestedShapeDtypeStruct = Any

STATE_ITEM_NAME = paths.STATE_FOLDER
METADATA_ITEM_NAME = checkpoint_metadata.METADATA_ITEM_NAME
INPUT_ITEM_NAME = 'train_input'


@dataclasses.dataclass
class CheckpointManagerOptions:
  """When checkpoints are saved, and which of them are kept."""

  # Steps between checkpoints; 0 is 1.
  save_interval_steps: int = 1
  # Number of newest checkpoints to keep; None keeps all.
  max_to_keep: int | None = None
  # Besides the newest, keeps one checkpoint per such duration.
  keep_time_interval: datetime.timedelta | None = None
  # Besides the newest, keeps the checkpoints of multiples of this step.
  keep_period: int | None = None
  # Whether the directory is created.
  create: bool = True
  # Folder of the directory to which expired checkpoints are renamed; None
  # deletes them.
  todelete_subdir: str | None = None
  # Whether temporary files of killed jobs are deleted at once; the first save
  # deletes them in any case.
  cleanup_tmp_directories: bool = False
  # Whether nothing is saved.
  read_only: bool = False
  # Options of writing in a thread; only `timeout_secs` is used.
  async_options: Any = None


class OrbaxCheckpointManager:
  """Saves train states in a directory, and restores them."""

  def __init__(
    self,
    directory: PathLike,
    checkpointer: state_handlers.HandlerCheckpointer,
    train_input_checkpointer: state_handlers.HandlerCheckpointer | None = None,
    options: CheckpointManagerOptions | None = None,
    checkpoint_type: CheckpointType = CheckpointType.UNSPECIFIED,
    tensorstore_use_ocdbt: bool | None = None,
    aux_checkpointers: dict[str, Any] | None = None,
    version_step_hint: int | None = None,
  ):
    """Opens a directory.

    Args:
      directory: The directory of the checkpoints.
      checkpointer: Decides whether a thread writes, and how shapes are checked;
        Checkpointer and AsyncCheckpointer of Orbax are allowed.
      train_input_checkpointer: Accepted and ignored: the state of the input is
        part of a checkpoint if an input is given.
      options: When to save, and what to keep.
      checkpoint_type: The format of new checkpoints.
      tensorstore_use_ocdbt: Whether Orbax writes OCDBT databases, otherwise a
        TensorStore per leaf; a directory with checkpoints continues with their
        `version`.
      aux_checkpointers: Not supported; must be empty.
      version_step_hint: Step of the checkpoint that decides about `version`.

    Raises:
      ValueError: The format is neither GDA nor FLAX.
      NotImplementedError: `aux_checkpointers` has entries.
    """
    del train_input_checkpointer
    if checkpoint_type == CheckpointType.UNSPECIFIED:
      raise ValueError('Must specify checkpoint type.')
    state_restore.check_checkpoint_type(checkpoint_type)
    if aux_checkpointers:
      raise NotImplementedError(
        'aux_checkpointers are not supported, got'
        f' {sorted(aux_checkpointers)}; save further items to another directory'
      )
    self._directory = storage.require_local(directory, 'directory')
    self._type = checkpoint_type
    self._options = options or CheckpointManagerOptions()
    self._checks_shapes = getattr(
      checkpointer.handler, 'enforce_restore_shape_check', False
    )
    self._version = self._find_version(tensorstore_use_ocdbt, version_step_hint)
    if jax.process_index() == 0:
      if self._options.create:
        self._directory.mkdir(parents=True, exist_ok=True)
      if self._options.cleanup_tmp_directories:
        paths.clean(self._directory)
    self._saver = manager.FileCheckpointer(
      _checkpoint_options(
        self._options,
        checkpointer,
        use_ocdbt=self._version == checkpoint_version.get_version(True),
      ),
      self._directory,
      checkpoint_type,
      lambda: None,
      transformations.Transformations(),
    )

  @property
  def version(self) -> float:
    """Format version of the checkpoints in the directory."""
    return self._version

  @property
  def directory(self) -> Path:
    """The directory of the checkpoints."""
    return self._directory

  def all_steps(self) -> list[int]:
    """Returns the steps of the checkpoints, oldest first."""
    return list(paths.steps(self._directory))

  def latest_step(self) -> int | None:
    """Returns the newest step; None if there is none."""
    return self._saver.latest_step()

  def check_for_errors(self) -> None:
    """Raises the error of a save that has failed."""
    self._saver.check_for_errors()

  def wait_until_finished(self) -> None:
    """Waits until all checkpoints are complete; raises the error of writing."""
    self._saver.wait()

  def reached_preemption(self, step: int) -> bool:
    """Returns False: `TrainingCheckpointer` receives the signals."""
    del step
    return False

  def should_save(self, step: int) -> bool:
    """Returns whether `save` without `force` saves at this step."""
    latest_step = self._saver.last_step
    is_due = step % (self._options.save_interval_steps or 1) == 0
    return latest_step is None or (latest_step < step and is_due)

  def save(
    self,
    step: int,
    train_state: TrainState,
    train_state_unpadded_shape_dtype_struct: OptionalNestedShapeDtypeStruct = (
      None
    ),
    train_input_pipeline: base_input.BaseInput | None = None,
    force: bool | None = False,
    aux_items: dict[str, Any] | None = None,
  ) -> bool:
    """Saves a state if it is due; returns whether it saves.

    Args:
      step: The step that the state enters.
      train_state: The state.
      train_state_unpadded_shape_dtype_struct: Accepted and ignored: the state
        is saved with the shapes that it has.
      train_input_pipeline: The training input, whose state is saved too.
      force: Whether to save a step that is not due.
      aux_items: Not supported; must be empty.

    Raises:
      CheckpointError: The step is saved already, or cannot be written.
      NotImplementedError: `aux_items` has entries.
    """
    del train_state_unpadded_shape_dtype_struct
    _check_no_items(aux_items)
    if not (force or self.should_save(step)):
      return False
    if step in self.all_steps():
      raise CheckpointError(
        f'Checkpoint for step {step} already exists in {self._directory};'
        ' nothing is overwritten'
      )
    if self._options.keep_period and step % self._options.keep_period == 0:
      self._saver.pin(step)
    input_state = None
    if train_input_pipeline is not None:
      input_state = train_input_pipeline.get_state()
    arrays = jax.tree.map(jax.numpy.asarray, train_state)
    return self._saver.save(step, arrays, input_state, force=True)

  def restore(
    self,
    step: int,
    train_state: TrainState,
    train_state_unpadded_shape_dtype_struct: OptionalNestedShapeDtypeStruct = (
      None
    ),
    train_input_pipeline: base_input.BaseInput | None = None,
    restore_kwargs: dict[str, Any] | None = None,
    aux_items: dict[str, Any] | None = None,
    aux_restore_kwargs: dict[str, Any] | None = None,
  ) -> TrainState:
    """Returns the state of a step.

    Args:
      step: The step.
      train_state: Shapes and dtypes of the state.
      train_state_unpadded_shape_dtype_struct: Shapes without padding; the
        variables have to have them in the checkpoint. None checks nothing.
      train_input_pipeline: The training input, whose state is restored too if
        the checkpoint has it.
      restore_kwargs: `specs` and `mesh` of the arrays, without which they are
        numpy arrays, and `transforms`.
      aux_items: Not supported; must be empty.
      aux_restore_kwargs: Accepted and ignored.

    Raises:
      ValueError: There is no such checkpoint, or it is of another model.
      NotImplementedError: `aux_items` has entries.
    """
    del aux_restore_kwargs
    _check_no_items(aux_items)
    self.wait_until_finished()
    checkpoint = state_restore.open_checkpoint(self._directory, step)
    kwargs = restore_kwargs or {}
    unpadded = train_state_unpadded_shape_dtype_struct
    if unpadded is not None and not kwargs.get('transforms'):
      state_restore.check_unpadded_shapes(checkpoint, unpadded)
    if train_input_pipeline is not None:
      input_state = reading.select_input_state(checkpoint)
      if input_state is not None:
        train_input_pipeline.set_state(input_state)
    return state_restore.restore_arrays(
      checkpoint,
      train_state,
      kwargs.get('specs'),
      kwargs.get('mesh'),
      kwargs.get('transforms'),
      checks_shapes=self._checks_shapes,
    )

  def close(self) -> None:
    """Waits until all checkpoints are complete and releases the thread."""
    self._saver.close()

  def _find_version(self, use_ocdbt: bool | None, step: int | None) -> float:
    version = checkpoint_version.get_version(use_ocdbt)
    available = paths.steps(self._directory)
    if step not in available:
      step = next(iter(available), None)
    if step is None:
      return version
    path = available[step]
    if path.is_file() or not checkpoint_metadata.metadata_exists(path):
      return version if path.is_file() else 0.0
    return checkpoint_metadata.restore_metadata(path)['version']


def save_checkpoint(
  train_state: TrainState,
  checkpoint_dir: PathLike,
  overwrite: bool = False,
  checkpoint_type: CheckpointType = CheckpointType.FLAX,
  state_specs: TrainState | None = None,
  async_checkpointer: state_handlers.AsyncHandlerCheckpointer | None = None,
  train_state_unpadded_shape_dtype_struct: TrainState | None = None,
  tensorstore_use_ocdbt: bool = False,
  async_options: Any = None,
) -> OrbaxCheckpointManager:
  """Saves a train state in a directory.

  Args:
    train_state: The state; the name of the checkpoint has its step. Of a state
      with a leading axis of devices, the first device's part is saved.
    checkpoint_dir: The directory of the checkpoints.
    overwrite: Whether to save where the directory has the checkpoint of a later
      step; otherwise nothing is saved then. Nothing is overwritten.
    checkpoint_type: The format.
    state_specs: Accepted and ignored: the arrays have their shardings.
    async_checkpointer: Writes in a thread; the function does not wait for it.
    train_state_unpadded_shape_dtype_struct: Shapes of the state without padding
      and without an axis of devices; None means that there is no such axis.
    tensorstore_use_ocdbt: As for OrbaxCheckpointManager.
    async_options: Options of writing in a thread.

  Returns:
    The manager of the directory. With `async_checkpointer`,
    `wait_until_finished` returns when the checkpoint is complete.

  Raises:
    ValueError: The format is neither GDA nor FLAX.
    CheckpointError: The step is saved already, or cannot be written.
  """
  del state_specs
  directory = OrbaxCheckpointManager(
    checkpoint_dir,
    state_handlers.get_checkpointer(checkpoint_type, async_checkpointer),
    options=CheckpointManagerOptions(async_options=async_options),
    checkpoint_type=checkpoint_type,
    tensorstore_use_ocdbt=tensorstore_use_ocdbt,
  )
  if train_state_unpadded_shape_dtype_struct is not None:
    train_state = _unreplicated(
      train_state, train_state_unpadded_shape_dtype_struct
    )
  step = jax.numpy.asarray(train_state.step)
  is_saved = directory.save(
    int(step.addressable_data(0).reshape(-1)[0]),
    train_state,
    train_state_unpadded_shape_dtype_struct,
    force=overwrite,
  )
  if not is_saved:
    logging.warning(
      'step %s is not saved: %s has step %s',
      step,
      checkpoint_dir,
      directory.latest_step(),
    )
  if async_checkpointer is None:
    directory.wait_until_finished()
  return directory


def _unreplicated(
  train_state: TrainState, unpadded: Nested[jax.ShapeDtypeStruct]
) -> TrainState:
  """Returns the first device's part of a state that pmap has replicated.

  The state is unchanged unless every variable has one more leading axis than
  its shape without padding.
  """
  shapes = [x.shape for x in jax.tree.leaves(unpadded.mdl_vars)]
  variables = jax.tree.leaves(train_state.mdl_vars)
  is_replicated = len(shapes) == len(variables) and all(
    x.shape[1:] == shape and len(x.shape) == len(shape) + 1
    for x, shape in zip(variables, shapes, strict=True)
  )
  if not is_replicated:
    return train_state
  return jax.tree.map(lambda x: x[0], train_state)


def _checkpoint_options(
  options: CheckpointManagerOptions,
  checkpointer: state_handlers.HandlerCheckpointer,
  *,
  use_ocdbt: bool,
) -> CheckpointOptions:
  timeout = getattr(options.async_options, 'timeout_secs', None)
  timeout = timeout or getattr(checkpointer, 'timeout_secs', None)
  # Orbax's classes have no `is_async`: its AsyncCheckpointer can be waited for.
  is_async = hasattr(checkpointer, 'wait_until_finished')
  interval = options.keep_time_interval
  return CheckpointOptions(
    save_interval_steps=options.save_interval_steps or 1,
    max_to_keep=options.max_to_keep,
    keep_interval_secs=interval and interval.total_seconds(),
    todelete_subdir=options.todelete_subdir,
    saving=not options.read_only,
    asynchronous=getattr(checkpointer, 'is_async', is_async),
    use_ocdbt=use_ocdbt,
    timeout_secs=timeout or state_handlers.TIMEOUT_SECS,
  )


def _check_no_items(aux_items: dict[str, Any] | None) -> None:
  if aux_items:
    raise NotImplementedError(
      f'aux_items are not supported, got {sorted(aux_items)}; save further'
      ' items to another directory'
    )
