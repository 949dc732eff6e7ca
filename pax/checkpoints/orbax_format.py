# SPDX-License-Identifier: Apache-2.0
"""Sharded train states as Orbax writes them: an OCDBT database of TensorStore.

    checkpoint_00000100/
      _CHECKPOINT_METADATA                 items, for Orbax
      metadata/metadata                    version 1.2 of paxml, shapes
      metadata/train_input/process_0-of-1  not read by Orbax, like the manifest
      metadata/manifest/process_0-of-1.json
      state/{_METADATA,_sharding}          key paths and shardings
      state/{manifest.ocdbt,d/...}         database of all processes, refers to
      state/ocdbt.process_0/{manifest.ocdbt,d/...}   that of each process

Importing this module imports Orbax, which takes most of a second.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from typing import Any, Protocol

import jax
import orbax.checkpoint as ocp
from etils import epath
from etils.epath import gpath

from pax import storage
from pax.checkpoints import (
  background_flush,
  host_arrays,
  manifest,
  paths,
  tensorstore_format,
  written_checksums,
)
from pax.checkpoints.types import Shapes, State
from praxis import py_utils

Path = pathlib.Path

_LOOP_IS_CLOSED = 'Event loop is closed'
_STEP_METADATA = '_CHECKPOINT_METADATA'
_SHARDINGS = '_sharding'
# Chunks larger than this are split, so that they are written in parallel and
# other meshes read less than a shard.
_MAX_CHUNK_BYTES = 64 * 2**20
# Files of the database, of each process, and the limits of their size. They are
# written, flushed and read in parallel.
_NUM_DATA_FILES = 16
_MIN_FILE_BYTES = 16 * 2**20
_MAX_FILE_BYTES = 2**31
# Processes with a replica of a shard each write a part of it from this size.
_MIN_PARALLEL_BYTES = 2**20
# Arrays from this size are not read again for the checksums of their files.
_MIN_CHECKSUM_BYTES = 2**20


class _Pending(Protocol):
  """What Orbax calls a future: it is running, and `result` waits for it."""

  def result(self, timeout: float | None = None) -> Any: ...


class _ArrayHandler(ocp.type_handlers.ArrayHandler):
  """Orbax's handler of the arrays of one save."""

  def __init__(self) -> None:
    super().__init__(
      # Parts of replicas are computed by programs that are compiled first:
      # worth it only where several processes share the work.
      use_replica_parallel=jax.process_count() > 1,
      min_slice_bytes_for_replica_parallel=_MIN_PARALLEL_BYTES,
      # It opens a TensorStore per array, a fifth of the time of small arrays.
      enable_write_sharding_file=False,
    )
    # The writes of the last call.
    self.pending: Sequence[_Pending] = ()
    # By the name that the array has in the database.
    self.shardings: dict[str, jax.sharding.Sharding] = {}
    self.arrays: dict[str, host_arrays.HostArray] = {}

  async def serialize(
    self, values: Any, infos: Any, args: Any = None
  ) -> Sequence[_Pending]:
    # Orbax's writes 128 files at once, of which none is complete, and could be
    # flushed, before most are written.
    context = tensorstore_format.create_context()
    for value, info in zip(values, infos, strict=True):
      self.shardings[info.name] = value.sharding
      info.ts_context = context
      # Without a limit of bytes, all arrays are one transaction: the database
      # has one version, and its data are written once.
      info.byte_limiter = None
    self.pending = await super().serialize(values, infos, args)
    self.arrays = _host_copies(values, infos)
    return self.pending


class _CreatedDirectory(gpath.PosixGPath):
  """A directory that exists.

  Threads of Orbax share the object that holds a `_DeferredDirectory`. A thread
  may test its type, and then find what another thread has put in its place.
  """

  async def await_creation(self) -> epath.Path:
    """Returns the directory."""
    return self


class _DeferredDirectory:
  """A directory that Orbax awaits before it writes.

  It is a PathAwaitingCreation in the interface of `async_save`.
  """

  def __init__(self, created: futures.Future[epath.Path], name: str):
    self._created = created
    self._name = name

  @property
  def path(self) -> epath.Path:
    """The directory below the checkpoint."""
    return epath.Path(self._name)

  def __truediv__(self, name: str) -> _DeferredDirectory:
    return _DeferredDirectory(self._created, f'{self._name}/{name}')

  async def await_creation(self) -> epath.Path:
    """Returns the absolute path once the directory exists."""
    if self._created.done():
      return self._created.result()
    return await asyncio.wrap_future(self._created)


class Snapshot:
  """Host copy of a state, held by the threads of Orbax that write it."""

  def __init__(self, state: State):
    """Copies the shards that this process writes from the devices."""
    arrays = paths.flatten(state)
    self._shapes: Shapes = {
      name: (tuple(array.shape), array.dtype.name)
      for name, array in arrays.items()
    }
    self._variables = _variables_metadata(state)
    self._created: futures.Future[epath.Path] = futures.Future()
    registry = ocp.type_handlers.create_type_handler_registry()
    array_handler = _ArrayHandler()
    registry.add(jax.Array, array_handler)
    handler = ocp.PyTreeCheckpointHandler(
      type_handler_registry=registry,
      # Weights hardly compress.
      use_compression=False,
    )
    # Orbax refuses arrays without elements; `shapes` has them.
    state = jax.tree.map(lambda x: x if x.size else None, state)
    args = ocp.args.PyTreeSave(
      state,
      jax.tree.map(
        lambda _: ocp.SaveArgs(chunk_byte_size=_MAX_CHUNK_BYTES), state
      ),
      ocdbt_target_data_file_size=_data_file_bytes(state),
    )
    directory = _DeferredDirectory(self._created, paths.STATE_FOLDER)
    self._saves = _run(handler.async_save(directory, args=args)) or ()
    self._pending = array_handler.pending
    self._shardings = array_handler.shardings
    self._arrays = array_handler.arrays

  def write(self, staging: Path) -> dict[str, manifest.Entry]:
    """Writes the shards of this process, once; returns its manifest entries.

    Args:
      staging: Directory of the checkpoint.

    Raises:
      OSError: A file cannot be written.
    """
    _ignore_late_callbacks()
    own = f'{paths.STATE_FOLDER}/{_process_folder(jax.process_index())}'
    with background_flush.BackgroundFlush(staging, own) as flush:
      self._write_database(staging)
      return flush.finish(lambda: self._complete(staging, own))

  def _complete(self, staging: Path, own: str) -> dict[str, manifest.Entry]:
    """Returns the manifest entries of the database of this process.

    The only process completes the state meanwhile.

    Args:
      staging: Directory of the checkpoint.
      own: Path of the database below it.
    """
    arrays, self._arrays = self._arrays, {}
    with futures.ThreadPoolExecutor(1, 'checksums') as pool:
      entries = pool.submit(
        written_checksums.file_entries, staging, own, arrays
      )
      if jax.process_count() == 1:
        self._complete_state(staging)
      return entries.result()

  def _write_database(self, staging: Path) -> None:
    with _anchored_state(staging) as folder:
      folder.mkdir(exist_ok=True)
      (folder.parent / paths.METADATA_FILE).mkdir(exist_ok=True)
      self._created.set_result(_CreatedDirectory(folder))
      try:
        for save in self._saves:
          save.result()
      except BaseException:
        self._join()
        raise

  def finish(
    self,
    staging: Path,
    metadata: Mapping[str, Any],
    others: storage.Path | None = None,
  ) -> dict[str, manifest.Entry]:
    """Completes a checkpoint that all processes have written.

    Args:
      staging: Directory of the checkpoint.
      metadata: Contents of the file `metadata` besides the shapes.
      others: Directory with the files of the other processes, if `staging` has
        only those of this one.

    Returns:
      The manifest entries of the files that belong to no process.

    Raises:
      OSError: A file cannot be written.
    """
    if jax.process_count() > 1:
      self._complete_state(staging, others)
    contents = {
      **metadata,
      'train_state_metadata': self._variables,
      'shapes': self._shapes,
    }
    file = staging / paths.METADATA_FILE / paths.METADATA_FILE
    file.write_text(json.dumps(contents))
    (staging / _STEP_METADATA).write_text(json.dumps(_step_metadata(staging)))
    items = (
      f'{paths.STATE_FOLDER}/',
      f'{paths.METADATA_FILE}/',
      _STEP_METADATA,
    )
    of_processes = f'{paths.STATE_FOLDER}/{_process_folder("")}'
    return _entries(
      staging,
      lambda name: name.startswith(items) and not name.startswith(of_processes),
    )

  def _complete_state(
    self, staging: Path, others: storage.Path | None = None
  ) -> None:
    """Writes the files of the state that belong to no process.

    They are the shardings, and the database that refers to those of all
    processes. Orbax would flush it here, before the others.

    Args:
      staging: Directory of the checkpoint.
      others: As in `finish`.
    """
    with _anchored_state(staging) as folder:
      _merge_databases(folder, others / paths.STATE_FOLDER if others else None)
      (folder / _SHARDINGS).write_text(_serialize_shardings(self._shardings))

  def release(self) -> None:
    """Ends the threads of Orbax if nothing has been written."""
    if not self._created.done():
      self._created.set_exception(RuntimeError('the checkpoint was given up'))
    self._join()

  def _join(self) -> None:
    # After an error the other threads must not write any more: the directory
    # will be deleted.
    for pending in self._pending:
      with contextlib.suppress(BaseException):
        pending.result()


def _host_copies(
  values: Sequence[jax.Array], infos: Sequence[ocp.type_handlers.ParamInfo]
) -> dict[str, host_arrays.HostArray]:
  """Returns the large arrays that have been copied to the host, by name.

  Of several processes each writes a part of the replicas of a shard, whose
  copies only Orbax has, and most do not write the shapes of the chunks.

  Args:
    values: The arrays.
    infos: What Orbax has about each.
  """
  if jax.process_count() > 1:
    return {}
  return {
    info.name: host_arrays.view(value)
    for value, info in zip(values, infos, strict=True)
    if value.nbytes >= _MIN_CHECKSUM_BYTES
  }


def _merge_databases(folder: Path, others: storage.Path | None) -> None:
  """Writes the database that refers to those of all processes.

  Of those in `others` only the nodes are read, not the values.

  Args:
    folder: Directory of the state, with the database of this process.
    others: Directory of the state with the databases of the other processes, if
      it is another one.
  """
  parts: dict[str, storage.Path] = {}
  if others is not None:
    names = [file.partition('/')[0] for file in storage.files(others)]
    parts = {name: others / name for name in names}
  parts |= {path.name: path for path in folder.iterdir()}
  prefix = _process_folder('')
  tensorstore_format.merge_databases(
    folder, {k: v for k, v in parts.items() if k.startswith(prefix)}
  )


@contextlib.contextmanager
def _anchored_state(staging: Path) -> Any:
  """Yields the folder of the state by an open descriptor; maps errors.

  Raises:
    OSError: Orbax failed.
  """
  with (
    # Orbax does not wait for the other writes when one has failed.
    tensorstore_format.anchored(staging, closes_after_error=False) as anchored,
    tensorstore_format.named(anchored, staging),
    tensorstore_format.raise_as(OSError, staging / paths.STATE_FOLDER, 'Orbax'),
  ):
    yield anchored / paths.STATE_FOLDER


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
  # In a thread: the caller may have an event loop.
  with futures.ThreadPoolExecutor(1) as pool:
    return pool.submit(asyncio.run, coroutine).result()


@functools.cache
def _ignore_late_callbacks() -> None:
  """Silences the writes that end after another one has failed.

  Orbax has closed their event loop by then, and Python would print a traceback
  for each.
  """
  show = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    error = unraisable.exc_value
    is_late = isinstance(error, RuntimeError) and str(error) == _LOOP_IS_CLOSED
    if not is_late:
      show(unraisable)

  sys.unraisablehook = hook


def _data_file_bytes(state: State) -> int:
  """Returns the size of files into which each process divides its shards."""
  num_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
  size = num_bytes // jax.process_count() // _NUM_DATA_FILES
  return min(max(size, _MIN_FILE_BYTES), _MAX_FILE_BYTES)


def _process_folder(process: int | str) -> str:
  return f'ocdbt.process_{process}'


def _entries(
  staging: Path, is_selected: Callable[[str], bool]
) -> dict[str, manifest.Entry]:
  """Returns the entries of the files with these paths below the checkpoint."""
  names = filter(is_selected, storage.files(staging))
  return manifest.file_entries(staging, names)


def _serialize_shardings(
  shardings: Mapping[str, jax.sharding.Sharding],
) -> str:
  """Returns the file by which Orbax restores without shardings."""
  texts = {
    sharding: _serialize_sharding(sharding)
    for sharding in set(shardings.values())
  }
  contents = {
    base64.urlsafe_b64encode(name.encode()).decode(): texts[sharding]
    for name, sharding in shardings.items()
    if texts[sharding]
  }
  return json.dumps(contents)


def _serialize_sharding(sharding: jax.sharding.Sharding) -> str | None:
  if isinstance(sharding, jax.sharding.NamedSharding):
    metadata = ocp.metadata.NamedShardingMetadata
  elif isinstance(sharding, jax.sharding.SingleDeviceSharding):
    metadata = ocp.metadata.SingleDeviceShardingMetadata
  else:
    return None
  return metadata.from_jax_sharding(sharding).to_serialized_string()


def _step_metadata(staging: Path) -> dict[str, Any]:
  now = time.time_ns()
  return {
    'item_handlers': {
      paths.STATE_FOLDER: ocp.PyTreeCheckpointHandler.typestr(),
      paths.METADATA_FILE: ocp.JsonCheckpointHandler.typestr(),
      **_item_handlers(staging),
    },
    'metrics': {},
    'performance_metrics': {},
    'init_timestamp_nsecs': now,
    'commit_timestamp_nsecs': now,
    'custom_metadata': {},
  }


def _item_handlers(staging: Path) -> dict[str, str]:
  """Returns the type of the handler of each further item that Orbax saved."""
  handlers: dict[str, str] = {}
  for file in staging.glob(f'*/{_STEP_METADATA}'):
    handler = json.loads(file.read_text()).get('item_handlers')
    if isinstance(handler, str):
      handlers[file.parent.name] = handler
  return handlers


def _variables_metadata(state: State) -> dict[str, Any]:
  """Returns the metadata of variables that version 1.2 of paxml requires."""
  if isinstance(state, Mapping):
    variables = state.get('mdl_vars', {})
  else:
    variables = getattr(state, 'mdl_vars', {})

  def array_metadata(leaf: Any) -> dict[str, Any]:
    is_masked = py_utils.is_optax_masked_node(leaf)
    fields: dict[str, Any] = {
      '_array_metadata_tag': True,
      'is_optax_masked_node': is_masked,
    }
    if not is_masked:
      fields['unpadded_shape'] = list(leaf.shape)
      fields['dtype'] = leaf.dtype.name
    return fields

  return {
    'mdl_vars': jax.tree.map(
      array_metadata, variables, is_leaf=py_utils.is_optax_masked_node
    )
  }
