# SPDX-License-Identifier: Apache-2.0
"""Sharded train states as one TensorStore (zarr) directory per leaf.

    checkpoint_00000100/state/mdl_vars.params.lm.softmax.w/{.zarray,0.0,0.1,...}

Chunks divide the parts that processes write, so that no two write to the same
file. A restore reads for each device only the chunks of its shard, independent
of the mesh that saved the state.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pathlib
import re
from collections.abc import (
  Callable,
  Collection,
  Iterator,
  Mapping,
  Sequence,
)
from concurrent import futures
from typing import Any

import jax
import numpy as np

from pax.checkpoints import paths
from pax.checkpoints.formats import manifest, ocdbt_nodes
from pax.checkpoints.formats.host_arrays import HostArray, Index
from pax.checkpoints.types import CorruptCheckpointError, Shapes
from pax.files import storage

Path = storage.Path

ZARRAY = '.zarray'
# The cache of `create_context` for the nodes of databases.
OCDBT_CACHE = 'cache_pool#ocdbt'
# Written by Orbax: key paths of the leaves in an OCDBT database.
_ORBAX_METADATA = '_METADATA'
_SEQUENCE_KEY = 1
# Types of values in it that have no array.
_EMPTY_VALUES = (
  'Dict',
  'List',
  'NamedTuple',
  'None',
  'Tuple',
  'Unknown',
  'placeholder',
)
# Written by Orbax next to the leaves, which have a .zarray.
_ORBAX_FOLDERS = ('array_metadatas', 'ocdbt.process_')
_DATABASE_FILE = re.compile(r'state/ocdbt\.process_\d+/d/.+')
_CHUNK_FILE = re.compile(r'.+/\d+(\.\d+)*')
# TensorStore's JSON specification of a key-value store.
KvStore = dict[str, Any]
# Chunks larger than this are split, so that they are written in parallel and
# other meshes read less than a shard.
MAX_CHUNK_BYTES = 64 * 2**20
_THREADS = 8
# JAX copies arrays at other addresses.
_ALIGNMENT = 64
# Smaller arrays are copied faster than they are aligned.
_ALIGNED_BYTES = 2**20
_MAX_REASON_CHARS = 300


def write(
  directory: pathlib.Path, arrays: Mapping[str, HostArray]
) -> dict[str, manifest.Entry]:
  """Writes the shards of this process; returns its manifest entries.

  The files need not be on the disk yet: `manifest.write` flushes them.

  Raises:
    OSError: A file cannot be written.
  """
  context = create_context()
  with anchored(directory) as staging, named(staging, directory):
    with futures.ThreadPoolExecutor(_THREADS) as pool:
      written = pool.map(
        lambda name: _write_leaf(staging, name, arrays[name], context), arrays
      )
      return {name: entry for entries in written for name, entry in entries}


class LeafReader:
  """Reader of the leaves of a checkpoint, which share a cache of metadata."""

  def __init__(self, directory: Path):
    """Finds the leaves.

    Raises:
      CorruptCheckpointError: An OCDBT database has no legible key paths.
    """
    self._folder = directory / paths.STATE_FOLDER
    self._stores = _leaf_stores(directory)
    self._context = create_context()

  def shapes(self) -> Shapes:
    """Returns shape and dtype name of every leaf.

    Raises:
      CorruptCheckpointError: The metadata of a leaf cannot be read.
    """
    with futures.ThreadPoolExecutor(_THREADS) as pool:
      shapes = pool.map(
        lambda item: _shape_of(self._folder / item[0], item[1], self._context),
        self._stores.items(),
      )
      return dict(zip(self._stores, shapes, strict=True))

  def read(
    self, abstract: Mapping[str, jax.ShapeDtypeStruct]
  ) -> dict[str, jax.Array]:
    """Returns leaves, read onto the devices of their shardings.

    Raises:
      CorruptCheckpointError: A leaf cannot be read.
    """
    with futures.ThreadPoolExecutor(_THREADS) as pool:
      arrays = pool.map(
        lambda item: _read_leaf(
          self._folder / item[0],
          self._stores.get(item[0]),
          item[1],
          self._context,
        ),
        abstract.items(),
      )
      return dict(zip(abstract, arrays, strict=True))


def is_database(files: Collection[str]) -> bool:
  """Returns whether a checkpoint with these files has an OCDBT database."""
  return f'{paths.STATE_FOLDER}/{ocdbt_nodes.MANIFEST}' in files


def data_files(files: Collection[str]) -> set[str]:
  """Returns the files with the values of leaves; the others are smaller.

  Of a database these are the files of processes, to which its index refers.

  Args:
    files: All files of the checkpoint, as paths below it.
  """
  pattern = _DATABASE_FILE if is_database(files) else _CHUNK_FILE
  return set(filter(pattern.fullmatch, files))


def leaf_of(file: str) -> str | None:
  """Returns the leaf of a file below the checkpoint; None if of none."""
  state, _, leaf = file.rpartition('/')[0].partition('/')
  return leaf if state == paths.STATE_FOLDER else None


def is_leaf_metadata(file: str) -> bool:
  """Returns whether a file below the checkpoint has the shape of a leaf."""
  return file.endswith(f'/{ZARRAY}')


def has_leaves_of_version_0(directory: Path) -> bool:
  """Returns whether the folder of a checkpoint has zarr directories itself."""
  return not (directory / paths.STATE_FOLDER).exists() and any(
    directory.glob(f'*/{ZARRAY}')
  )


def chunk_shape(
  shard_shape: tuple[int, ...], itemsize: int, max_bytes: int
) -> tuple[int, ...]:
  """Returns a chunk shape of at most `max_bytes` that divides the shard."""
  chunk = list(shard_shape)
  while np.prod(chunk, dtype=np.int64) * itemsize > max_bytes:
    axis = int(np.argmax(chunk))
    size = chunk[axis]
    factor = next((n for n in range(2, size + 1) if size % n == 0), 1)
    chunk[axis] = size // factor
  return tuple(max(size, 1) for size in chunk)


def _write_leaf(
  directory: Path, name: str, array: HostArray, context: Any
) -> list[tuple[str, manifest.Entry]]:
  if not array.parts:
    return []
  path = directory / paths.STATE_FOLDER / name
  metadata = chunked_metadata(array)
  with raise_as(OSError, path):
    store = open_array(storage.kvstore(path), context, metadata).result()
    for index, part in array.parts:
      # The snapshot is never modified: TensorStore need not copy it.
      store[index].write(
        part, can_reference_source_data_indefinitely=True
      ).result()
  return [
    (f'{paths.STATE_FOLDER}/{name}/{file}', manifest.entry(data))
    for file, data in _chunk_files(array, metadata['chunks'])
  ] + [(f'{paths.STATE_FOLDER}/{name}/{ZARRAY}', _file_entry(path / ZARRAY))]


def _chunk_files(
  array: HostArray, chunk: Sequence[int]
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (file name, contents) of the chunks of an array."""
  for index, part in array.parts:
    starts = [axis.start for axis in index]
    counts = [n // size for n, size in zip(part.shape, chunk, strict=True)]
    for cell in itertools.product(*map(range, counts)):
      inside = tuple(
        slice(i * size, (i + 1) * size)
        for i, size in zip(cell, chunk, strict=True)
      )
      file = '.'.join(
        str(start // size + i)
        for start, size, i in zip(starts, chunk, cell, strict=True)
      )
      yield file or '0', part[inside]


def _leaf_stores(directory: Path) -> dict[str, KvStore]:
  """Returns the key-value store of each leaf by its name, sorted by name.

  Raises:
    CorruptCheckpointError: An OCDBT database has no legible key paths.
  """
  folder = directory / paths.STATE_FOLDER
  if (folder / ocdbt_nodes.MANIFEST).exists():
    return dict(sorted(_ocdbt_stores(folder).items()))
  if not folder.exists():
    leaves = [file.parent for file in directory.glob(f'*/{ZARRAY}')]
  else:
    leaves = [
      path
      for path in folder.iterdir()
      if path.is_dir() and not path.name.startswith(_ORBAX_FOLDERS)
    ]
  return {path.name: storage.kvstore(path) for path in sorted(leaves)}


def _ocdbt_stores(folder: Path) -> dict[str, KvStore]:
  return {
    name: {
      'driver': 'ocdbt',
      'base': storage.kvstore(folder.absolute()),
      'cache_pool': OCDBT_CACHE,
      'path': prefix,
    }
    for name, prefix in database_prefixes(folder).items()
  }


def database_prefixes(folder: Path) -> dict[str, str]:
  """Returns the prefix of the keys of each leaf in an OCDBT database.

  Args:
    folder: The folder of the database.

  Raises:
    CorruptCheckpointError: The database has no legible key paths.
  """
  file = folder / _ORBAX_METADATA
  try:
    entries = json.loads(file.read_bytes())['tree_metadata'].values()
    key_paths = [
      entry['key_metadata']
      for entry in entries
      if entry['value_metadata']['value_type'] not in _EMPTY_VALUES
    ]
    return {
      _ocdbt_leaf_name(keys): '.'.join(str(key['key']) for key in keys) + '/'
      for keys in key_paths
    }
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
    raise CorruptCheckpointError(
      f'{file} cannot be read ({type(e).__name__}: {e})'
    ) from e


def _ocdbt_leaf_name(keys: Sequence[Mapping[str, Any]]) -> str:
  parts = [
    f'{"_" if key["key_type"] == _SEQUENCE_KEY else "."}{key["key"]}'
    for key in keys
  ]
  return ''.join(parts).replace('/', '.').removeprefix('.')


def _read_leaf(
  path: Path,
  kvstore: KvStore | None,
  abstract: jax.ShapeDtypeStruct,
  context: Any,
) -> jax.Array:
  if 0 in abstract.shape:
    # Orbax does not save arrays without elements.
    empty = np.zeros(abstract.shape, abstract.dtype)
    return place(abstract, lambda index: empty[index])
  with raise_as(CorruptCheckpointError, path):
    store = open_array(kvstore or storage.kvstore(path), context).result()
  # Replicas of a shard share one read.
  shards: dict[str, np.ndarray] = {}

  def read_shard(index: Index | None) -> np.ndarray:
    if (key := str(index)) not in shards:
      with raise_as(CorruptCheckpointError, path):
        shards[key] = _read_aligned(store[index])
    return shards[key]

  return place(abstract, read_shard)


def _read_aligned(store: Any) -> np.ndarray:
  """Returns an array in memory that JAX uses on the CPU without a copy."""
  import tensorstore as ts

  array = empty_aligned(store.shape, store.dtype.numpy_dtype)
  source = store[ts.d[:].translate_to[0]]
  ts.array(array, copy=False).write(source).result()
  return array


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Returns memory that JAX uses on the CPU without a copy, if large.

  Args:
    shape: Shape of the array.
    dtype: Its dtype.
  """
  size = math.prod(shape) * dtype.itemsize
  if size < _ALIGNED_BYTES:
    return np.empty(shape, dtype)
  buffer = np.empty(size + _ALIGNMENT, np.uint8)
  start = -buffer.ctypes.data % _ALIGNMENT
  return buffer[start : start + size].view(dtype).reshape(shape)


def sharding_of(abstract: jax.ShapeDtypeStruct) -> jax.sharding.Sharding:
  """Returns the sharding of a leaf; the first device if it has none."""
  return abstract.sharding or jax.sharding.SingleDeviceSharding(
    jax.local_devices()[0]
  )


def place(
  abstract: jax.ShapeDtypeStruct,
  read_shard: Callable[[Index | None], np.ndarray],
) -> jax.Array:
  """Returns a leaf on the devices of its sharding.

  Args:
    abstract: Shape, dtype and sharding.
    read_shard: Returns the part of the array at an index, not modified later.
      JAX annotates the index as optional, but never passes None.
  """
  return jax.make_array_from_callback(
    tuple(abstract.shape),
    sharding_of(abstract),
    read_shard,
    dtype=abstract.dtype,
  )


def _shape_of(
  path: Path, kvstore: KvStore, context: Any
) -> tuple[tuple[int, ...], str]:
  with raise_as(CorruptCheckpointError, path):
    store = open_array(kvstore, context).result()
  return tuple(store.shape), store.dtype.name


def chunked_metadata(array: HostArray) -> dict[str, Any]:
  """Returns the metadata of an array whose chunks divide its parts."""
  shape = chunk_shape(array.part_shape, array.dtype.itemsize, MAX_CHUNK_BYTES)
  return zarr_metadata(array, shape)


def zarr_metadata(
  array: HostArray | jax.ShapeDtypeStruct, chunk: tuple[int, ...]
) -> dict[str, Any]:
  """Returns the metadata of an array without compression.

  Args:
    array: The array.
    chunk: Shape of its chunks.
  """
  dtype = np.dtype(array.dtype)
  return {
    'shape': list(array.shape),
    'chunks': list(chunk),
    # TensorStore has names for what numpy has not: bfloat16, float8, int4.
    # Those are 2; a dtype of numpy is 1, and its copy 0.
    'dtype': dtype.name if dtype.isbuiltin == 2 else dtype.str,
    'compressor': None,
  }


def create_context() -> Any:
  """Returns the resources that the arrays of one checkpoint share.

  TensorStore flushes nothing with it.
  """
  import tensorstore as ts

  return ts.Context(
    {
      # By default every chunk is flushed alone, twice the time of all together,
      # and so is every intermediate version of a database.
      'file_io_sync': False,
      # The nodes of a database, which are read for each array.
      OCDBT_CACHE: {'total_bytes_limit': 10**8},
      **storage.TENSORSTORE_CONTEXT,
    }
  )


def open_array(
  kvstore: KvStore,
  context: Any,
  metadata: dict[str, Any] | None = None,
  transaction: Any = None,
) -> Any:
  """Opens an array; with `metadata` creates it if missing, to write it.

  Args:
    kvstore: Where the array is.
    context: That of `create_context`.
    metadata: The metadata of zarr of a new array.
    transaction: The transaction of the writes, if any.

  Returns:
    TensorStore's future of the array.
  """
  import tensorstore as ts

  spec: dict[str, Any] = {'driver': 'zarr', 'kvstore': kvstore}
  if metadata:
    # By default a chunk of zeros has no file, which would look like a loss.
    spec |= {'metadata': metadata, 'store_data_equal_to_fill_value': True}
  writes = metadata is not None
  return ts.open(
    spec,
    open=True,
    create=writes,
    read=True,
    write=writes,
    context=context,
    transaction=transaction,
  )


@contextlib.contextmanager
def anchored(
  directory: pathlib.Path, *, closes_after_error: bool = True
) -> Iterator[pathlib.Path]:
  """Yields a path to a directory by an open descriptor of its parent.

  TensorStore creates missing parents: if the job directory was moved or deleted
  meanwhile, it would appear anew at the old path.

  Args:
    directory: The directory.
    closes_after_error: Whether all writes have ended when one has failed. Those
      that have not must not meet the number in use for another file.
  """
  flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
  descriptor = os.open(directory.parent, flags)
  is_closing = closes_after_error
  try:
    path = pathlib.Path(f'/proc/self/fd/{descriptor}', directory.name)
    yield path if path.exists() else directory
    is_closing = True
  finally:
    if is_closing:
      os.close(descriptor)


@contextlib.contextmanager
def named(anchored: Path, directory: Path) -> Iterator[None]:
  """Replaces the path by a descriptor in messages of errors.

  Args:
    anchored: The path by a descriptor.
    directory: The path to show instead.

  Raises:
    OSError: As the block raises it, with the other path.
  """
  try:
    yield
  except OSError as e:
    raise OSError(str(e).replace(str(anchored), str(directory))) from e


@contextlib.contextmanager
def raise_as(
  error: type[Exception], path: Path, library: str = 'TensorStore'
) -> Iterator[None]:
  """Raises the errors of TensorStore as `error`, without its internals.

  Args:
    error: The type of the errors.
    path: The path in their messages.
    library: The library that calls TensorStore.

  Raises:
    Exception: An `error` for any exception of the block.
  """
  try:
    yield
  # TensorStore raises several types.
  except Exception as e:
    reason = re.split(r' \[(?:tensorstore_spec|os_error_code)=', str(e))[0]
    if '[os_error_code=' in str(e):
      # The text of the system after that of each layer of TensorStore.
      reason = reason.rpartition(': ')[2]
    reason = ' '.join(reason.split())[:_MAX_REASON_CHARS]
    raise error(f'{library} failed at {path}: {reason}') from e


def _file_entry(path: Path) -> manifest.Entry:
  return manifest.entry(path.read_bytes())
