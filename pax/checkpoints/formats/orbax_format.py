# SPDX-License-Identifier: Apache-2.0
"""Sharded train states as Orbax writes them: an OCDBT database of TensorStore.

    checkpoint_00000100/
      _CHECKPOINT_METADATA                 items, for Orbax
      metadata/metadata                    version 1.2 of paxml, shapes
      metadata/train_input/process_0-of-1  not read by Orbax, like the manifest
      metadata/manifest/process_0-of-1.json
      state/{_METADATA,_sharding}          key paths and shardings, for Orbax
      state/metadata.json                  step, for Levanter
      state/{manifest.ocdbt,d/...}         database of all processes, refers to
      state/ocdbt.process_0/{manifest.ocdbt,d/...}   that of each process

Importing this module imports Orbax, which takes most of a second.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from pax.checkpoints import paths
from pax.checkpoints.formats import (
  background_flush,
  database_writer,
  host_arrays,
  manifest,
  tensorstore_format,
  written_checksums,
)
from pax.checkpoints.types import Shapes, State
from pax.files import storage
from praxis import py_utils

Path = pathlib.Path

_SHARDINGS = '_sharding'
_LEVANTER_METADATA = 'metadata.json'
# Files of the database, of each process, and the limits of their size. They are
# written, flushed and read in parallel.
_NUM_DATA_FILES = 16
_MIN_FILE_BYTES = 16 * 2**20
_MAX_FILE_BYTES = 2**31


@dataclasses.dataclass(frozen=True)
class _Leaf:
  """What Orbax saves of an array."""

  array: host_arrays.HostArray
  sharding: jax.sharding.Sharding


class _LeafHandler(ocp.type_handlers.TypeHandler):
  """Writes leaves as Orbax writes arrays of JAX, which it restores as such."""

  def __init__(self, array_handler: ocp.type_handlers.ArrayHandler):
    """Takes the handler by which Orbax restores them."""
    self._array_handler = array_handler
    # By the name that the array has in the database.
    self.leaves: dict[str, _Leaf] = {}

  def typestr(self) -> str:
    """Returns the type of the leaves when they are restored."""
    return self._array_handler.typestr()

  async def serialize(
    self,
    values: Sequence[_Leaf],
    infos: Sequence[ocp.type_handlers.ParamInfo],
    args: Sequence[ocp.SaveArgs] | None = None,
  ) -> Sequence[Any]:
    """Writes the database of this process; on return nothing is pending."""
    for leaf, info in zip(values, infos, strict=True):
      self.leaves[info.name] = leaf
    folder = pathlib.Path(infos[0].parent_dir)
    database_writer.write(
      folder / _process_folder(jax.process_index()),
      {name: leaf.array for name, leaf in self.leaves.items()},
      file_bytes=infos[0].ocdbt_target_data_file_size,
    )
    return ()

  async def deserialize(self, infos: Any, args: Any = None) -> Sequence[Any]:
    """Is not called."""
    raise NotImplementedError('Orbax restores arrays by its own handler')

  async def metadata(self, infos: Any) -> Sequence[Any]:
    """Is not called."""
    raise NotImplementedError('Orbax restores arrays by its own handler')


class Snapshot:
  """Host copy of a state."""

  def __init__(self, state: State):
    """Copies the parts that this process writes from the devices."""
    arrays = paths.flatten(state)
    self._shapes: Shapes = {
      name: (tuple(array.shape), array.dtype.name)
      for name, array in arrays.items()
    }
    self._variables = _variables_metadata(state)
    self._file_bytes = _data_file_bytes(state)
    copies = host_arrays.snapshot(arrays)
    leaves = {
      # Orbax refuses arrays without elements; `shapes` has them.
      name: _Leaf(copies[name], array.sharding) if array.size else None
      for name, array in arrays.items()
    }
    self._state = paths.unflatten(state, leaves)
    # By the name that the array has in the database.
    self._shardings: dict[str, jax.sharding.Sharding] = {}
    self._zarr3: dict[str, dict[str, Any]] = {}

  def write(self, staging: Path) -> dict[str, manifest.Entry]:
    """Writes the parts of this process, once; returns its manifest entries.

    Args:
      staging: Directory of the checkpoint.

    Raises:
      OSError: A file cannot be written.
    """
    own = f'{paths.STATE_FOLDER}/{_process_folder(jax.process_index())}'
    with background_flush.BackgroundFlush(staging, own) as flush:
      leaves = self._write_state(staging)
      self._state = None
      self._shardings = {name: leaf.sharding for name, leaf in leaves.items()}
      arrays = {name: leaf.array for name, leaf in leaves.items()}
      self._zarr3 = {
        name: database_writer.zarr3_metadata(array)
        for name, array in arrays.items()
      }
      return flush.finish(lambda: self._complete(staging, own, arrays))

  def _write_state(self, staging: Path) -> dict[str, _Leaf]:
    """Writes the database of this process; process 0 writes the key paths.

    Args:
      staging: Directory of the checkpoint.

    Returns:
      The leaves by the name that the array has in the database.
    """
    array_handler = ocp.type_handlers.ArrayHandler()
    handler = _LeafHandler(array_handler)
    registry = ocp.type_handlers.create_type_handler_registry(
      # Orbax warns if it has none of arrays.
      (jax.Array, array_handler),
      (_Leaf, handler),
    )
    checkpoint_handler = ocp.PyTreeCheckpointHandler(
      type_handler_registry=registry
    )
    args = ocp.args.PyTreeSave(
      self._state, ocdbt_target_data_file_size=self._file_bytes
    )
    with _anchored_state(staging) as folder:
      folder.mkdir(exist_ok=True)
      (folder.parent / paths.METADATA_FILE).mkdir(exist_ok=True)
      checkpoint_handler.save(epath.Path(folder), args=args)
    return handler.leaves

  def _complete(
    self,
    staging: Path,
    own: str,
    arrays: Mapping[str, host_arrays.HostArray],
  ) -> dict[str, manifest.Entry]:
    """Returns the manifest entries of the database of this process.

    The only process completes the state meanwhile.

    Args:
      staging: Directory of the checkpoint.
      own: Path of the database below it.
      arrays: The arrays that it has, by name.
    """
    with futures.ThreadPoolExecutor(1, 'checksums') as pool:
      entries = pool.submit(
        written_checksums.file_entries, staging, own, arrays
      )
      if jax.process_count() == 1:
        self._complete_state(staging)
      return entries.result()

  def finish(
    self,
    staging: Path,
    metadata: Mapping[str, Any],
    others: storage.Path | None = None,
  ) -> dict[str, manifest.Entry]:
    """Completes a checkpoint that all processes have written.

    Args:
      staging: Directory of the checkpoint.
      metadata: Contents of the file `metadata` besides the shapes, with `step`.
      others: Directory with the files of the other processes, if `staging` has
        only those of this one.

    Returns:
      The manifest entries of the files that belong to no process.

    Raises:
      OSError: A file cannot be written.
    """
    if jax.process_count() > 1:
      self._complete_state(staging, others)
    levanter_file = staging / paths.STATE_FOLDER / _LEVANTER_METADATA
    levanter_file.write_text(json.dumps(_levanter_metadata(metadata['step'])))
    contents = {
      **metadata,
      'train_state_metadata': self._variables,
      'shapes': self._shapes,
    }
    file = staging / paths.METADATA_FILE / paths.METADATA_FILE
    file.write_text(json.dumps(contents))
    (staging / paths.ORBAX_METADATA_FILE).write_text(
      json.dumps(_step_metadata(staging))
    )
    items = (
      f'{paths.STATE_FOLDER}/',
      f'{paths.METADATA_FILE}/',
      paths.ORBAX_METADATA_FILE,
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
      parts = _databases(
        folder, others / paths.STATE_FOLDER if others else None
      )
      database_writer.merge(folder, parts, self._zarr3)
      (folder / _SHARDINGS).write_text(_serialize_shardings(self._shardings))


def _databases(
  folder: Path, others: storage.Path | None
) -> dict[str, storage.Path]:
  """Returns the databases of all processes by their names.

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
  return {k: v for k, v in parts.items() if k.startswith(prefix)}


@contextlib.contextmanager
def _anchored_state(staging: Path) -> Any:
  """Yields the folder of the state by an open descriptor; maps errors.

  Raises:
    OSError: Orbax failed.
  """
  with (
    # When a write of TensorStore has failed, others go on.
    tensorstore_format.anchored(staging, closes_after_error=False) as anchored,
    tensorstore_format.named(anchored, staging),
    tensorstore_format.raise_as(OSError, staging / paths.STATE_FOLDER, 'Orbax'),
  ):
    yield anchored / paths.STATE_FOLDER


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


def _levanter_metadata(step: int) -> dict[str, Any]:
  """Returns the file by which Levanter finds the root of a checkpoint."""
  # It compares them with its own, which have no time zone.
  now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
  return {
    'step': step,
    'timestamp': now.isoformat(),
    'is_temporary': False,
  }


def _item_handlers(staging: Path) -> dict[str, str]:
  """Returns the type of the handler of each further item that Orbax saved."""
  handlers: dict[str, str] = {}
  for file in staging.glob(f'*/{paths.ORBAX_METADATA_FILE}'):
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
