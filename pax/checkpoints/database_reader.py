# SPDX-License-Identifier: Apache-2.0
"""Reads the arrays of an OCDBT database, each byte once.

TensorStore reads an array into buffers of its own, and the checksums need all
files again. Here threads read the files directly into the memory of the arrays,
and compute the checksums from there. Values of the database that are not read
as arrays are read for their checksums only.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import NamedTuple

import jax
import numpy as np
from isal import isal_zlib

from pax import storage
from pax.checkpoints import (
  byte_groups,
  host_arrays,
  manifest,
  ocdbt_index,
  paths,
  tensorstore_format,
)
from pax.checkpoints.host_arrays import Index
from pax.checkpoints.ocdbt_index import Location
from pax.checkpoints.types import CorruptCheckpointError, LeafDict

Path = storage.Path

_THREADS = 8
# Bytes that one thread reads by one request, or for one array.
_TASK_BYTES = 16 * 2**20
# Fits into the cache of a core.
_BUFFER_BYTES = 2**18
# Bytes of arrays in the memory of the host at the same time.
_GROUP_BYTES = 4 * 2**30


class _Shard(NamedTuple):
  """A part of an array that devices of this process have."""

  index: Index
  data: np.ndarray


class _Copy(NamedTuple):
  """A part of a chunk, and its place in a shard."""

  target: np.ndarray
  source: Index


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Span:
  """A chunk in a file, or a part of its bytes."""

  location: Location
  # The place of the bytes in a shard. None if they have to be copied.
  target: memoryview | None = None
  copies: Sequence[_Copy] = ()
  chunk_shape: tuple[int, ...] = ()

  def copy(self, data: np.ndarray) -> None:
    """Copies parts of the chunk to shards; `data` has its bytes."""
    for target, source in self.copies:
      target[...] = data.view(target.dtype).reshape(self.chunk_shape)[source]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Array:
  """An array whose chunks are all in the database, not compressed."""

  leaf: jax.ShapeDtypeStruct
  chunk_shape: tuple[int, ...]
  # By position in the grid of chunks.
  chunks: Mapping[tuple[int, ...], bytes | Location]

  @property
  def num_bytes(self) -> int:
    """Size of the array."""
    return math.prod(self.leaf.shape) * np.dtype(self.leaf.dtype).itemsize

  @property
  def first_location(self) -> Location:
    """Location by which arrays are sorted, so that files are read in order."""
    locations = (x for x in self.chunks.values() if isinstance(x, Location))
    return min(locations, default=Location('', 0, 0))

  def spans(self, shards: Collection[_Shard]) -> Iterator[_Span]:
    """Yields what has to be read; copies the chunks that the index has."""
    for cell, value in self.chunks.items():
      copies = [
        copy
        for shard in shards
        if (copy := self._copy(cell, shard)) is not None
      ]
      if not copies:
        continue
      if isinstance(value, bytes):
        span = _Span(
          location=Location('', 0, len(value)),
          copies=copies,
          chunk_shape=self.chunk_shape,
        )
        span.copy(np.frombuffer(value, np.uint8))
        continue
      target = copies[0].target
      is_direct = len(copies) == 1 and target.flags.c_contiguous
      if is_direct and target.shape == self.chunk_shape:
        memory = memoryview(target.reshape(-1).view(np.uint8))
        yield _Span(location=value, target=memory)
      else:
        yield _Span(location=value, copies=copies, chunk_shape=self.chunk_shape)

  def _copy(self, cell: tuple[int, ...], shard: _Shard) -> _Copy | None:
    """Returns the intersection of a chunk with a shard; None if empty."""
    target, source = [], []
    for i, size, part in zip(cell, self.chunk_shape, shard.index, strict=True):
      start = max(i * size, part.start)
      stop = min((i + 1) * size, part.stop)
      if start >= stop:
        return None
      target.append(slice(start - part.start, stop - part.start))
      source.append(slice(start - i * size, stop - i * size))
    # An index of slices alone gives a view, of a scalar too.
    return _Copy(shard.data[(*target, ...)], tuple(source))


class DatabaseReader:
  """Reads arrays of a database and verifies its files."""

  def __init__(self, path: Path, entries: Mapping[str, manifest.Entry]):
    """Reads the index.

    Args:
      path: The checkpoint.
      entries: Manifest entries of the data files by path below the checkpoint.

    Raises:
      CorruptCheckpointError: The index cannot be read.
    """
    self._path = path
    self._entries = entries
    folder = path / paths.STATE_FOLDER
    self._prefixes = tensorstore_format.database_prefixes(folder)
    self._index = ocdbt_index.read(folder)

  def can_read(self, abstract: LeafDict) -> bool:
    """Returns whether these leaves are stored as `read` requires."""
    return all(self._find(*item) is not None for item in abstract.items())

  def read(self, abstract: LeafDict, own_files: Collection[str]) -> LeafDict:
    """Returns leaves, placed by the shardings of `abstract`.

    Args:
      abstract: Shapes, dtypes and shardings of leaves, for which `can_read`
        returns True.
      own_files: The data files whose checksums are compared.

    Raises:
      CorruptCheckpointError: A file cannot be read, or differs.
    """
    arrays = [(name, self._find(name, leaf)) for name, leaf in abstract.items()]
    arrays.sort(key=lambda item: item[1].first_location)
    leaves: LeafDict = {}
    checksums: dict[Location, int] = {}
    with futures.ThreadPoolExecutor(_THREADS, 'read') as pool:
      for group in byte_groups.split_by_bytes(
        arrays, lambda item: item[1].num_bytes, _GROUP_BYTES
      ):
        shards = {name: _empty_shards(array.leaf) for name, array in group}
        spans = [
          span
          for name, array in group
          for span in array.spans(shards[name].values())
        ]
        for parts in pool.map(self._read_task, _tasks(spans)):
          checksums |= parts
        leaves |= {
          name: _place(array.leaf, shards[name]) for name, array in group
        }
      self._compare(checksums, own_files, pool)
    return leaves

  def _find(self, name: str, leaf: jax.ShapeDtypeStruct) -> _Array | None:
    """Returns the array of a leaf; None if TensorStore has to read it."""
    if 0 in leaf.shape:
      # Orbax does not save arrays without elements.
      return _Array(leaf=leaf, chunk_shape=leaf.shape, chunks={})
    prefix = self._prefixes.get(name)
    metadata = self._index.get(f'{prefix}{tensorstore_format.ZARRAY}')
    if not isinstance(metadata, bytes):
      return None
    metadata = json.loads(metadata)
    chunk_shape = tuple(metadata['chunks'])
    expected = tensorstore_format.zarr_metadata(leaf, chunk_shape)
    if any(metadata.get(key) != value for key, value in expected.items()):
      return None
    if metadata.get('filters') or metadata.get('order') != 'C':
      return None
    separator = metadata.get('dimension_separator', '.')
    grid = [
      range(-(-size // part))
      for size, part in zip(leaf.shape, chunk_shape, strict=True)
    ]
    chunks = {
      cell: self._index.get(f'{prefix}{separator.join(map(str, cell)) or 0}')
      for cell in itertools.product(*grid)
    }
    num_bytes = math.prod(chunk_shape) * np.dtype(leaf.dtype).itemsize
    if all(self._is_valid(value, num_bytes) for value in chunks.values()):
      return _Array(leaf=leaf, chunk_shape=chunk_shape, chunks=chunks)
    return None

  def _is_valid(self, value: bytes | Location | None, num_bytes: int) -> bool:
    if isinstance(value, Location):
      size, _ = self._entries.get(_name(value.file), (0, 0))
      return value.size == num_bytes and value.end <= size
    return value is not None and len(value) == num_bytes

  def _read_task(self, spans: Sequence[_Span]) -> dict[Location, int]:
    """Reads consecutive spans of a file; returns their checksums.

    Raises:
      CorruptCheckpointError: The file cannot be read.
    """
    path = self._path / _name(spans[0].location.file)
    try:
      if isinstance(path, storage.BucketPath):
        return _read_range(path, spans)
      with path.open('rb', buffering=0) as file:
        return {
          span.location: _read_span(file.fileno(), span) for span in spans
        }
    except OSError as e:
      raise CorruptCheckpointError(
        f'{path} cannot be read ({e.strerror or e})'
      ) from e

  def _compare(
    self,
    checksums: Mapping[Location, int],
    own_files: Collection[str],
    pool: futures.Executor,
  ) -> None:
    """Compares the checksums of files; parts of them have been read.

    Args:
      checksums: By location.
      own_files: The files.
      pool: Threads that read the other parts.

    Raises:
      CorruptCheckpointError: A file cannot be read, or differs.
    """
    parts: dict[str, list[Location]] = {}
    for location in sorted(checksums):
      parts.setdefault(_name(location.file), []).append(location)
    gaps = {
      name: list(_gaps(parts.get(name, ()), self._entries[name][0]))
      for name in own_files
    }
    results = {
      (name, start): pool.submit(
        manifest.checksum, self._path, name, start, size
      )
      for name in own_files
      for start, size in gaps[name]
    }
    for name in own_files:
      own = {
        (location.offset, location.size): checksums[location]
        for location in parts.get(name, ())
      }
      for start, size in gaps[name]:
        try:
          own[start, size] = results[name, start].result()
        except OSError as e:
          raise CorruptCheckpointError(
            f'{self._path / name} cannot be read ({e.strerror or e})'
          ) from e
      crc = 0
      for (_, size), part in sorted(own.items()):
        crc = isal_zlib.crc32_combine(crc, part, size)
      manifest.check_checksum(self._path / name, crc, self._entries[name])


def _name(file: str) -> str:
  """Returns the path below the checkpoint of a file of the database."""
  return f'{paths.STATE_FOLDER}/{file}'


def _empty_shards(leaf: jax.ShapeDtypeStruct) -> dict[str, _Shard]:
  """Returns memory for the shards of this process, by their index as text."""
  sharding = tensorstore_format.sharding_of(leaf)
  indices = sharding.addressable_devices_indices_map(tuple(leaf.shape))
  shards = {}
  for index in indices.values():
    bounded = host_arrays.bounded(index, leaf.shape)
    shape = tuple(part.stop - part.start for part in bounded)
    # Replicas of a shard share it.
    if str(index) not in shards:
      data = tensorstore_format.empty_aligned(shape, np.dtype(leaf.dtype))
      shards[str(index)] = _Shard(bounded, data)
  return shards


def _place(
  leaf: jax.ShapeDtypeStruct, shards: Mapping[str, _Shard]
) -> jax.Array:
  return tensorstore_format.place(leaf, lambda index: shards[str(index)].data)


def _tasks(spans: Iterable[_Span]) -> list[list[_Span]]:
  """Returns spans in the order of files, grouped if they are consecutive."""
  tasks: list[list[_Span]] = []
  num_bytes = 0
  end: tuple[str, int] | None = None
  for span in sorted(
    itertools.chain.from_iterable(map(_divide, spans)),
    key=lambda span: span.location,
  ):
    location = span.location
    num_bytes += location.size
    if end != (location.file, location.offset) or num_bytes > _TASK_BYTES:
      tasks.append([])
      num_bytes = location.size
    tasks[-1].append(span)
    end = (location.file, location.end)
  return tasks


def _divide(span: _Span) -> Iterator[_Span]:
  """Yields the parts of a span that several threads can read."""
  location, target = span.location, span.target
  if target is None:
    yield span
    return
  for start in range(0, location.size, _TASK_BYTES):
    size = min(_TASK_BYTES, location.size - start)
    yield _Span(
      location=Location(location.file, location.offset + start, size),
      target=target[start : start + size],
    )


def _read_range(
  path: storage.BucketPath, spans: Sequence[_Span]
) -> dict[Location, int]:
  """Reads consecutive spans by one request; returns their checksums."""
  start = spans[0].location.offset
  data = memoryview(path.read_range(start, spans[-1].location.end))
  checksums = {}
  for span in spans:
    location = span.location
    part = data[location.offset - start : location.end - start]
    if span.target is None:
      span.copy(np.frombuffer(part, np.uint8))
    else:
      span.target[:] = part
    checksums[location] = isal_zlib.crc32(part)
  return checksums


def _read_span(file: int, span: _Span) -> int:
  """Reads a span of an open file; returns its checksum.

  Raises:
    OSError: It cannot be read.
  """
  location, memory = span.location, span.target
  if memory is None:
    memory = memoryview(np.empty(location.size, np.uint8))
  checksum = position = 0
  while position < location.size:
    part = memory[position : position + _BUFFER_BYTES]
    count = os.preadv(file, [part], location.offset + position)
    if not count:
      raise OSError(errno.EIO, 'it ends early')
    checksum = isal_zlib.crc32(part[:count], checksum)
    position += count
  if span.target is None:
    span.copy(np.frombuffer(memory, np.uint8))
  return checksum


def _gaps(
  locations: Iterable[Location], size: int
) -> Iterator[tuple[int, int]]:
  """Yields (start, size) of the other parts of a file, divided for threads."""
  position = 0
  for start, end in (*((x.offset, x.end) for x in locations), (size, size)):
    for part in range(position, start, _TASK_BYTES):
      yield part, min(_TASK_BYTES, start - part)
    position = end
