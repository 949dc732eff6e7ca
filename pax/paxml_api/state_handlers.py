# SPDX-License-Identifier: Apache-2.0
"""Checkpoint handlers and checkpointers with the interface of Orbax.

A handler saves and restores one item at a path; a checkpointer of a handler
does so atomically. The path is that of a checkpoint, or its folder `state`.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Mapping
from concurrent import futures
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from pax import coordination_service, train_states
from pax.checkpoints import paths, state_restore, writing
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.formats import layouts
from pax.checkpoints.types import CheckpointError, CheckpointType
from pax.files import storage
from praxis import base_input
from praxis.pytypes import Nested

Path = pathlib.Path
PathLike = str | os.PathLike[str]

TIMEOUT_SECS = 300


class CheckpointHandler(Protocol):
  """Saves and restores one item."""

  def save(self, directory: PathLike, *args: Any, **kwargs: Any) -> None:
    """Saves an item at a path."""
    ...

  def restore(self, directory: PathLike, *args: Any, **kwargs: Any) -> Any:
    """Returns the item at a path."""
    ...


class _StateHandler:
  """Saves a train state in one of the formats of checkpoints."""

  checkpoint_type: CheckpointType
  # Whether Orbax writes a state of type GDA.
  use_ocdbt = False

  async def async_save(
    self,
    directory: PathLike,
    item: Nested[jax.Array] | None = None,
    save_args: Any = None,
    args: Any = None,
  ) -> list[futures.Future[None]]:
    """Copies a train state to the host and begins to write it.

    Args:
      directory: Path of the checkpoint, which must not exist.
      item: The state.
      save_args: Accepted and ignored.
      args: An object with the state as its `item`, instead of `item`.

    Returns:
      Futures that are done when the checkpoint is complete.

    Raises:
      CheckpointError: The path exists.
    """
    del save_args
    state = item if args is None else args.item
    final = storage.require_local(directory, 'directory')
    if final.exists():
      raise CheckpointError(
        f'Destination {final} already exists; delete it, or save to another'
        ' path'
      )
    layout = layouts.layout_of(self.checkpoint_type, use_ocdbt=self.use_ocdbt)
    arrays = jax.tree.map(jax.numpy.asarray, state)
    snapshot = layout.snapshot(arrays)
    step = 0
    if isinstance(state, train_states.TrainState):
      step = int(jax.device_get(arrays.step))
    final.parent.mkdir(parents=True, exist_ok=True)
    pool = futures.ThreadPoolExecutor(1, 'checkpoint')
    barriers = coordination_service.Barriers(final.name, TIMEOUT_SECS)
    contents = writing.Contents(snapshot, step)
    pending = pool.submit(writing.write, layout, final, contents, barriers)
    pool.shutdown(wait=False)
    return [pending]

  def save(self, *args: Any, **kwargs: Any) -> None:
    """Saves a train state; the arguments are those of `async_save`."""
    for pending in asyncio.run(self.async_save(*args, **kwargs)):
      pending.result()


class PaxCheckpointHandler(_StateHandler):
  """Train states as TensorStore arrays."""

  checkpoint_type = CheckpointType.GDA

  def __init__(
    self, enforce_restore_shape_check: bool = False, use_ocdbt: bool = False
  ):
    """Sets how states are restored.

    Args:
      enforce_restore_shape_check: Whether other shapes than the saved ones are
        an error.
      use_ocdbt: Whether an OCDBT database is written, otherwise a TensorStore
        per leaf; both are read.
    """
    self.use_ocdbt = use_ocdbt
    self.enforce_restore_shape_check = enforce_restore_shape_check

  def restore(
    self,
    directory: PathLike,
    item: Nested[jax.ShapeDtypeStruct] | None = None,
    specs: Nested[Any] | None = None,
    mesh: Mesh | None = None,
    transforms: Mapping[str, Any] | None = None,
  ) -> Nested[Any]:
    """Returns the state at a path: arrays over a mesh, else of numpy.

    Args:
      directory: The checkpoint.
      item: Shapes and dtypes of the state.
      specs: Its PartitionSpecs.
      mesh: The mesh.
      transforms: `task.train.restore_transformations`.

    Raises:
      ValueError: `item` is missing, or the checkpoint is of another model.
    """
    return state_restore.restore_arrays(
      _open_checkpoint(directory),
      _required(item),
      specs,
      mesh,
      transforms,
      checks_shapes=self.enforce_restore_shape_check,
    )


class FlaxCheckpointHandler(_StateHandler):
  """Replicated train states in one msgpack file."""

  checkpoint_type = CheckpointType.FLAX

  def __init__(self, use_ocdbt: bool = False):
    """Ignores `use_ocdbt`."""
    del use_ocdbt

  def restore(
    self,
    directory: PathLike,
    item: Nested[jax.ShapeDtypeStruct] | None = None,
    restore_args: Any = None,
    transforms: Mapping[str, Any] | None = None,
    transforms_default_to_original: bool = True,
  ) -> Nested[Any]:
    """Returns the state at a path as numpy arrays.

    Args:
      directory: The checkpoint.
      item: The tree of the state.
      restore_args: Accepted and ignored.
      transforms: Must be None.
      transforms_default_to_original: Accepted and ignored.

    Raises:
      ValueError: `item` is missing, or `transforms` is set.
    """
    del restore_args, transforms_default_to_original
    if transforms is not None:
      raise ValueError(
        'transforms are not supported for CheckpointType.FLAX; use'
        ' CheckpointType.GDA'
      )
    return state_restore.restore_numpy(
      _open_checkpoint(directory), _required(item)
    )


class BaseInputCheckpointHandler:
  """The state of an input, in one file per process."""

  def save(self, directory: PathLike, item: base_input.BaseInput) -> None:
    """Saves the state of an input with its own `save`."""
    path = _process_file(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    item.save(path)
    if jax.process_count() > 1:
      from jax.experimental import multihost_utils

      multihost_utils.sync_global_devices('BaseInputCheckpointHandler:save')

  def restore(
    self, directory: PathLike, item: base_input.BaseInput | None = None
  ) -> None:
    """Restores the state of `item` with its own `restore`.

    Raises:
      ValueError: `item` is missing, or there is no such folder.
    """
    if item is None:
      raise ValueError('restore needs the input as `item`, got None')
    if not Path(directory).exists():
      raise ValueError(f'Checkpoint dir {directory} does not exist.')
    item.restore(_process_file(directory))


class HandlerCheckpointer:
  """Saves and restores items with a handler."""

  is_async = False

  def __init__(
    self, handler: CheckpointHandler, timeout_secs: int = TIMEOUT_SECS
  ):
    """Takes the handler; a save may take `timeout_secs`."""
    self.handler = handler
    self.timeout_secs = timeout_secs
    self._pending: list[futures.Future[None]] = []

  def save(
    self,
    directory: PathLike,
    *args: Any,
    force: bool = False,
    **kwargs: Any,
  ) -> None:
    """Saves an item.

    Args:
      directory: The path.
      *args: Arguments of the handler, such as the item.
      force: Whether to replace what is at the path.
      **kwargs: Further arguments of the handler.

    Raises:
      CheckpointError: The path exists, or the item cannot be written.
    """
    self.wait_until_finished()
    path = storage.require_local(directory, 'directory')
    if force and path.exists():
      paths.delete(path)
    if self.is_async and isinstance(self.handler, _StateHandler):
      self._pending = asyncio.run(
        self.handler.async_save(path, *args, **kwargs)
      )
    else:
      self.handler.save(path, *args, **kwargs)

  def restore(self, directory: PathLike, *args: Any, **kwargs: Any) -> Any:
    """Returns the item at a path; the arguments are those of the handler."""
    self.wait_until_finished()
    return self.handler.restore(directory, *args, **kwargs)

  def check_for_errors(self) -> None:
    """Raises the error of a save that has failed."""
    for pending in self._pending:
      if pending.done():
        pending.result()

  def wait_until_finished(self) -> None:
    """Waits until the item is saved; raises the error of writing."""
    waiting, self._pending = self._pending, []
    for pending in waiting:
      pending.result()

  def close(self) -> None:
    """Waits until the item is saved."""
    self.wait_until_finished()


class AsyncHandlerCheckpointer(HandlerCheckpointer):
  """Writes the files in a thread."""

  is_async = True


def get_checkpointer(
  checkpoint_type: CheckpointType,
  async_checkpointer: AsyncHandlerCheckpointer | None = None,
  enforce_restore_shape_check: bool = False,
  tensorstore_use_ocdbt: bool = False,
) -> HandlerCheckpointer:
  """Returns the checkpointer of train states in a format.

  Args:
    checkpoint_type: The format; FLAX writes in a thread.
    async_checkpointer: Is returned, unless None.
    enforce_restore_shape_check: As for PaxCheckpointHandler.
    tensorstore_use_ocdbt: Likewise.

  Raises:
    ValueError: The format is neither GDA nor FLAX.
  """
  if async_checkpointer is not None:
    return async_checkpointer
  state_restore.check_checkpoint_type(checkpoint_type)
  if checkpoint_type == CheckpointType.FLAX:
    return AsyncHandlerCheckpointer(
      FlaxCheckpointHandler(use_ocdbt=tensorstore_use_ocdbt)
    )
  return HandlerCheckpointer(
    PaxCheckpointHandler(
      enforce_restore_shape_check=enforce_restore_shape_check,
      use_ocdbt=tensorstore_use_ocdbt,
    )
  )


def reregister_type_handlers(
  tensorstore_metadata_key: str | None = None,
) -> None:
  """Does nothing: each leaf holds its metadata in its own directory."""
  del tensorstore_metadata_key


def _open_checkpoint(directory: PathLike) -> CheckpointReader:
  """Opens the checkpoint at a path, which may be that of its `state`."""
  path = storage.to_path(directory)
  is_state = path.name == paths.STATE_FOLDER
  return CheckpointReader(path.parent if is_state else path)


def _required(item: Nested[Any] | None) -> Nested[Any]:
  if item is None:
    raise ValueError(
      'restore needs the shapes of the state as `item`, got None'
    )
  return item


def _process_file(directory: PathLike) -> Path:
  name = f'process_{jax.process_index()}-of-{jax.process_count()}'
  return Path(directory) / name
