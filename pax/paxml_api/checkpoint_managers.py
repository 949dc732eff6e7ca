# SPDX-License-Identifier: Apache-2.0
"""A directory of checkpoints with the interface of paxml's manager."""

from __future__ import annotations

import functools
import os
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any

import jax
from absl import logging
from jax.experimental import multihost_utils

from pax import train_states
from pax.checkpoints import (
  manager,
  paths,
  reading,
  state_restore,
  transformations,
)
from pax.checkpoints.types import CheckpointError, CheckpointType, JobFunctions
from pax.files import storage
from pax.paxml_api import (
  checkpoint_metadata,
  checkpoint_version,
  state_handlers,
)
from pax.paxml_api.checkpoint_manager_options import CheckpointManagerOptions
from praxis import base_input

TrainState = train_states.TrainState
Path = pathlib.Path
PathLike = str | os.PathLike[str]
# Shapes of a train state, or None.
OptionalNestedShapeDtypeStruct = Any

STATE_ITEM_NAME = paths.STATE_FOLDER
METADATA_ITEM_NAME = checkpoint_metadata.METADATA_ITEM_NAME
INPUT_ITEM_NAME = 'train_input'
# Files and folders of checkpoints.
_RESERVED_NAMES = frozenset(
  [STATE_ITEM_NAME, METADATA_ITEM_NAME, INPUT_ITEM_NAME, paths.MANIFEST_FOLDER]
)


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
      aux_checkpointers: Checkpointers of Pax or Orbax by the name of the item
        that each saves, in a folder of the checkpoint.
      version_step_hint: Step of the checkpoint that decides about `version`.

    Raises:
      ValueError: The format is neither GDA nor FLAX, or the name of an item is
        that of a file of checkpoints.
      NotImplementedError: `aux_checkpointers` has entries, and the format is
        FLAX.
    """
    del train_input_checkpointer
    if checkpoint_type == CheckpointType.UNSPECIFIED:
      raise ValueError('Must specify checkpoint type.')
    state_restore.check_checkpoint_type(checkpoint_type)
    self._aux_checkpointers = dict(aux_checkpointers or {})
    _check_item_names(self._aux_checkpointers, checkpoint_type)
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
      self._options.to_checkpoint_options(
        is_async=_is_async(checkpointer),
        use_ocdbt=self._version == checkpoint_version.get_version(True),
        timeout_secs=_timeout_secs(self._options, checkpointer),
      ),
      self._directory,
      checkpoint_type,
      transformations.Transformations(),
      JobFunctions(),
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
    """Returns whether all processes save at this step because of SIGTERM.

    JAX's preemption service decides, in processes that `jax.distributed` has
    connected; call it at every step. In a job of Pax the service is off:
    `TrainingCheckpointer` receives the signals.
    """
    if not jax.config.values['jax_enable_preemption_service']:
      return False
    return multihost_utils.reached_preemption_sync_point(step)

  def should_save(self, step: int) -> bool:
    """Returns whether `save` without `force` saves at this step."""
    if self._options.read_only:
      return False
    if self.reached_preemption(step):
      return True
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
      aux_items: Further items, by the names of `aux_checkpointers`. The save
        waits for them, even if a thread writes the state.

    Raises:
      CheckpointError: The step is saved already, or cannot be written.
      ValueError: An item has no checkpointer.
    """
    del train_state_unpadded_shape_dtype_struct
    items = {
      name: functools.partial(_save_item, self._aux_checkpointer(name), item)
      for name, item in (aux_items or {}).items()
    }
    if not (force or self.should_save(step)):
      return False
    if step in self.all_steps():
      raise CheckpointError(
        f'Checkpoint for step {step} already exists in {self._directory};'
        ' nothing is overwritten'
      )
    input_state = None
    if train_input_pipeline is not None:
      input_state = train_input_pipeline.get_state()
    arrays = jax.tree.map(jax.numpy.asarray, train_state)
    return self._saver.save(step, arrays, input_state, force=True, items=items)

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
  ) -> TrainState | Mapping[str, Any]:
    """Returns the state of a step; with `aux_items` a mapping of all items.

    Args:
      step: The step.
      train_state: Shapes and dtypes of the state.
      train_state_unpadded_shape_dtype_struct: Shapes without padding; the
        variables have to have them in the checkpoint. None checks nothing.
      train_input_pipeline: The training input, whose state is restored too if
        the checkpoint has it.
      restore_kwargs: `specs` and `mesh` of the arrays, without which they are
        numpy arrays, and `transforms`.
      aux_items: Further items to restore, as arguments of their checkpointers,
        such as shapes or None.
      aux_restore_kwargs: Further arguments of these checkpointers by item.

    Raises:
      ValueError: There is no such checkpoint, it is of another model, or an
        item has no checkpointer.
      KeyError: The checkpoint does not have an item.
    """
    aux = {name: self._aux_checkpointer(name) for name in aux_items or ()}
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
    state = state_restore.restore_arrays(
      checkpoint,
      train_state,
      kwargs.get('specs'),
      kwargs.get('mesh'),
      kwargs.get('transforms'),
      checks_shapes=self._checks_shapes,
    )
    if not aux_items:
      return state
    items = {
      STATE_ITEM_NAME: state,
      METADATA_ITEM_NAME: checkpoint_metadata.restore_metadata(checkpoint.path),
    }
    for name, checkpointer in aux.items():
      folder = checkpoint.path / name
      if not folder.is_dir():
        raise KeyError(f'{checkpoint.path} does not have the item {name!r}')
      items[name] = checkpointer.restore(
        folder, aux_items[name], **(aux_restore_kwargs or {}).get(name, {})
      )
    # A mapping whose items are attributes, too.
    from orbax.checkpoint import args

    return args.Composite(**items)

  def _aux_checkpointer(self, name: str) -> Any:
    if name not in self._aux_checkpointers:
      raise ValueError(
        f'aux_items has {name!r}, which is not in aux_checkpointers:'
        f' {sorted(self._aux_checkpointers)}'
      )
    return self._aux_checkpointers[name]

  def close(self) -> None:
    """Waits until all checkpoints are complete and releases the threads."""
    self._saver.close()
    for checkpointer in self._aux_checkpointers.values():
      checkpointer.close()

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


def _unreplicated(train_state: TrainState, unpadded: TrainState) -> TrainState:
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


def _is_async(checkpointer: state_handlers.HandlerCheckpointer) -> bool:
  # Orbax's classes have no `is_async`: its AsyncCheckpointer can be waited for.
  is_orbax_async = hasattr(checkpointer, 'wait_until_finished')
  return getattr(checkpointer, 'is_async', is_orbax_async)


def _timeout_secs(
  options: CheckpointManagerOptions,
  checkpointer: state_handlers.HandlerCheckpointer,
) -> float:
  timeout = getattr(options.async_options, 'timeout_secs', None)
  timeout = timeout or getattr(checkpointer, 'timeout_secs', None)
  return timeout or state_handlers.TIMEOUT_SECS


def _check_item_names(
  names: Collection[str], checkpoint_type: CheckpointType
) -> None:
  """Checks the names of further items of a checkpoint.

  Args:
    names: The names.
    checkpoint_type: The format.

  Raises:
    ValueError: A name is taken, or is not that of a folder.
    NotImplementedError: The format is a single file.
  """
  if names and checkpoint_type == CheckpointType.FLAX:
    raise NotImplementedError(
      f'aux_checkpointers {sorted(names)} need a directory, and a checkpoint of'
      ' CheckpointType.FLAX is a file; use CheckpointType.GDA'
    )
  for name in names:
    if name in _RESERVED_NAMES or not re.fullmatch(r'\w[\w.-]*', name):
      raise ValueError(
        'an item of aux_checkpointers must have the name of a folder other'
        f' than {sorted(_RESERVED_NAMES)}, got {name!r}'
      )


def _save_item(checkpointer: Any, item: Any, folder: Path) -> None:
  checkpointer.save(folder, item)
  if _is_async(checkpointer):
    checkpointer.wait_until_finished()
