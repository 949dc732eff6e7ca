# SPDX-License-Identifier: Apache-2.0
"""A train state as one TensorStore (zarr) directory per leaf.

    checkpoint_00000100/state/mdl_vars.params.lm.softmax.w/{.zarray,0.0,0.1,...}

Chunks divide the shards, so processes never write to the same file; a restore
reads, for each device, just the chunks its shard needs, however the devices
were arranged when the state was saved.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any

import jax
import numpy as np

from pax.checkpoints import manifest
from pax.checkpoints.host_arrays import HostArray, Index
from pax.checkpoints.types import CheckpointError

Path = pathlib.Path

_STATE = 'state'
_ZARRAY = '.zarray'
_MAX_CHUNK_BYTES = 64 * 2**20
_THREADS = 8


def write(
  directory: Path, arrays: Mapping[str, HostArray]
) -> dict[str, manifest.Entry]:
  """Writes this process's pieces; returns the entries of its manifest."""
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    written = pool.map(
      lambda item: _write_leaf(directory, *item), arrays.items()
    )
    return {name: entry for entries in written for name, entry in entries}


def read(
  directory: Path, abstract: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
  """Reads each leaf straight to the devices of its sharding."""
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    arrays = pool.map(
      lambda item: _read_leaf(directory / _STATE / item[0], item[1]),
      abstract.items(),
    )
    return dict(zip(abstract, arrays, strict=True))


def folders(leaves: Iterable[str]) -> list[str]:
  """Where the files of these leaves are, below the checkpoint."""
  return [f'{_STATE}/{name}' for name in leaves]


def saved_shapes(directory: Path) -> dict[str, tuple[tuple[int, ...], str]]:
  """The shape and the name of the dtype of every leaf that is stored."""
  folder = directory / _STATE
  leaves = sorted(folder.iterdir()) if folder.exists() else []
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    return dict(pool.map(_shape_of, leaves))


def chunk_shape(
  piece_shape: tuple[int, ...], itemsize: int, max_bytes: int
) -> tuple[int, ...]:
  """The largest chunk of at most `max_bytes` that divides a piece evenly."""
  chunk = list(piece_shape)
  while np.prod(chunk, dtype=np.int64) * itemsize > max_bytes:
    axis = int(np.argmax(chunk))
    size = chunk[axis]
    factor = next((n for n in range(2, size + 1) if size % n == 0), 1)
    chunk[axis] = size // factor
  return tuple(max(size, 1) for size in chunk)


def _write_leaf(
  directory: Path, name: str, array: HostArray
) -> list[tuple[str, manifest.Entry]]:
  if not array.pieces:
    return []
  path = directory / _STATE / name
  chunk = chunk_shape(array.piece_shape, array.dtype.itemsize, _MAX_CHUNK_BYTES)
  store = _open(path, _zarr_metadata(array, chunk))
  with _named(path):
    for index, piece in array.pieces:
      # The snapshot is ours and nobody changes it: no copy is needed.
      store[index].write(
        piece, can_reference_source_data_indefinitely=True
      ).result()
  return [
    (f'{_STATE}/{name}/{file}', manifest.entry(data))
    for file, data in _chunk_files(array, chunk)
  ] + [(f'{_STATE}/{name}/{_ZARRAY}', _entry_of(path / _ZARRAY))]


def _chunk_files(
  array: HostArray, chunk: tuple[int, ...]
) -> Iterator[tuple[str, np.ndarray]]:
  """The files of the pieces of an array, and what each must hold."""
  for index, piece in array.pieces:
    starts = [part.start for part in index]
    counts = [
      size // part for size, part in zip(piece.shape, chunk, strict=True)
    ]
    for cell in itertools.product(*map(range, counts)):
      inside = tuple(
        slice(i * size, (i + 1) * size)
        for i, size in zip(cell, chunk, strict=True)
      )
      file = '.'.join(
        str(start // size + i)
        for start, size, i in zip(starts, chunk, cell, strict=True)
      )
      yield file or '0', piece[inside]


def _read_leaf(path: Path, abstract: jax.ShapeDtypeStruct) -> jax.Array:
  store = _open(path)
  pieces: dict[str, np.ndarray] = {}

  def piece(index: Index) -> np.ndarray:
    if (key := str(index)) not in pieces:
      with _named(path):
        pieces[key] = store[index].read().result()
    return pieces[key]

  return _place(abstract, piece)


def _place(
  abstract: jax.ShapeDtypeStruct, piece: Callable[[Index], np.ndarray]
) -> jax.Array:
  sharding = abstract.sharding or jax.sharding.SingleDeviceSharding(
    jax.local_devices()[0]
  )
  return jax.make_array_from_callback(
    tuple(abstract.shape), sharding, piece, dtype=abstract.dtype
  )


def _shape_of(leaf: Path) -> tuple[str, tuple[tuple[int, ...], str]]:
  store = _open(leaf)
  return leaf.name, (tuple(store.shape), store.dtype.name)


def _zarr_metadata(array: HostArray, chunk: tuple[int, ...]) -> dict[str, Any]:
  is_bfloat16 = array.dtype.name == 'bfloat16'
  return {
    'shape': list(array.shape),
    'chunks': list(chunk),
    'dtype': 'bfloat16' if is_bfloat16 else array.dtype.str,
    'compressor': None,
  }


def _open(path: Path, metadata: dict[str, Any] | None = None) -> Any:
  """The TensorStore at `path`; `metadata` creates it where it is missing."""
  import tensorstore as ts

  spec = {'driver': 'zarr', 'kvstore': {'driver': 'file', 'path': f'{path}/'}}
  if metadata:
    # A chunk of zeros is stored like any other: a missing file is a loss.
    spec |= {'metadata': metadata, 'store_data_equal_to_fill_value': True}
  writes = metadata is not None
  with _named(path):
    return ts.open(
      spec, open=True, create=writes, read=True, write=writes
    ).result()


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
  """Raises TensorStore's errors as ours, without its specification."""
  try:
    yield
  except ValueError as e:
    reason = str(e).partition(' [tensorstore_spec')[0]
    raise CheckpointError(f'TensorStore failed at {path}: {reason}') from e


def _entry_of(path: Path) -> manifest.Entry:
  return manifest.entry(path.read_bytes())
