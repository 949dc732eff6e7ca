# SPDX-License-Identifier: Apache-2.0
"""Reads the arrays of a checkpoint from its files, each byte once.

TensorStore reads an array into buffers of its own, and the checksums need all
files again. Here threads read the files, of a disk or a bucket, directly into
the memory of the arrays, and compute the checksums from there. Parts of files
that no array of this process needs are read for their checksums only.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import cast

import jax
import numpy as np
from isal import isal_zlib

from pax.checkpoints import byte_groups
from pax.checkpoints.formats import (
  array_chunks,
  host_arrays,
  manifest,
  tensorstore_format,
)
from pax.checkpoints.formats.chunk_index import ChunkIndex, Location
from pax.checkpoints.types import CorruptCheckpointError, LeafDict
from pax.files import storage

Path = storage.Path
# By leaf name.
StoredArrays = Mapping[str, array_chunks.StoredArray]

# Bytes that one thread reads by one request, or for one array.
_TASK_BYTES = 16 * 2**20
# Fits into the cache of a core.
_BUFFER_BYTES = 2**18
# Bytes of arrays in the memory of the host at the same time.
_GROUP_BYTES = 4 * 2**30


class ArrayReader:
  """Reads arrays of a checkpoint and verifies the files that contain them."""

  def __init__(
    self,
    path: Path,
    entries: Mapping[str, manifest.Entry],
    index: ChunkIndex,
  ):
    """Reads nothing yet.

    Args:
      path: The checkpoint.
      entries: Manifest entries of the data files by path below the checkpoint.
      index: Where the chunks are.
    """
    self._path = path
    self._entries = entries
    self._sizes = {name: size for name, (size, _) in entries.items()}
    self._index = index

  def find(self, abstract: LeafDict) -> StoredArrays | None:
    """Returns where leaves are; None if TensorStore has to read one of them.

    Args:
      abstract: Shapes, dtypes and shardings of the leaves.
    """
    arrays: dict[str, array_chunks.StoredArray] = {}
    for name, leaf in abstract.items():
      array = array_chunks.find(self._index, self._sizes, name, leaf)
      if array is None:
        return None
      arrays[name] = array
    return arrays

  def read(self, arrays: StoredArrays, own_files: Collection[str]) -> LeafDict:
    """Returns leaves, placed by their shardings.

    Args:
      arrays: What `find` returned.
      own_files: The data files whose checksums are compared.

    Raises:
      CorruptCheckpointError: A file cannot be read, or differs.
    """
    in_order = sorted(arrays.items(), key=lambda item: item[1].first_location)
    leaves: dict[str, jax.Array] = {}
    known: dict[str, dict[manifest.Part, int]] = {}
    num_threads = manifest.num_threads(self._path)
    with futures.ThreadPoolExecutor(num_threads, 'read') as pool:
      for group in byte_groups.split_by_bytes(
        in_order, lambda item: item[1].num_bytes, _GROUP_BYTES
      ):
        shards = {name: _empty_shards(array.leaf) for name, array in group}
        spans = [
          span
          for name, array in group
          for span in array.spans(shards[name].values())
        ]
        for checksums in pool.map(self._read_task, _tasks(spans)):
          for location, crc in checksums.items():
            known.setdefault(location.file, {})[location.part] = crc
        leaves |= {
          name: _place(array.leaf, shards[name]) for name, array in group
        }
    own_entries = {name: self._entries[name] for name in own_files}
    manifest.verify(self._path, own_entries, known)
    return leaves

  def _read_task(
    self, spans: Sequence[array_chunks.Span]
  ) -> dict[Location, int]:
    """Reads consecutive spans of a file; returns their checksums.

    Raises:
      CorruptCheckpointError: The file cannot be read.
    """
    path = self._path / spans[0].location.file
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


def _empty_shards(leaf: jax.ShapeDtypeStruct) -> dict[str, array_chunks.Shard]:
  """Returns memory for the shards of this process, by their index as text."""
  sharding = tensorstore_format.sharding_of(leaf)
  # JAX annotates the indices as optional; no sharding returns None.
  indices = cast(
    Mapping[jax.Device, host_arrays.Index],
    sharding.addressable_devices_indices_map(tuple(leaf.shape)),
  )
  shards: dict[str, array_chunks.Shard] = {}
  for index in indices.values():
    bounded = host_arrays.bounded(index, leaf.shape)
    shape = tuple(part.stop - part.start for part in bounded)
    # Replicas of a shard share it.
    if str(index) not in shards:
      data = tensorstore_format.empty_aligned(shape, np.dtype(leaf.dtype))
      shards[str(index)] = array_chunks.Shard(bounded, data)
  return shards


def _place(
  leaf: jax.ShapeDtypeStruct, shards: Mapping[str, array_chunks.Shard]
) -> jax.Array:
  return tensorstore_format.place(leaf, lambda index: shards[str(index)].data)


def _tasks(spans: Iterable[array_chunks.Span]) -> list[list[array_chunks.Span]]:
  """Returns spans in the order of files, grouped if they are consecutive."""
  tasks: list[list[array_chunks.Span]] = []
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


def _divide(span: array_chunks.Span) -> Iterator[array_chunks.Span]:
  """Yields the parts of a span that several threads can read."""
  location, target = span.location, span.target
  if target is None:
    yield span
    return
  for start in range(0, location.size, _TASK_BYTES):
    size = min(_TASK_BYTES, location.size - start)
    yield array_chunks.Span(
      location=Location(location.file, location.offset + start, size),
      target=target[start : start + size],
    )


def _read_range(
  path: storage.BucketPath, spans: Sequence[array_chunks.Span]
) -> dict[Location, int]:
  """Reads consecutive spans by one request; returns their checksums.

  Raises:
    OSError: The object cannot be read, or ends before them.
  """
  start, end = spans[0].location.offset, spans[-1].location.end
  data = memoryview(path.read_range(start, end))
  if len(data) != end - start:
    raise OSError(errno.EIO, 'it ends early')
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


def _read_span(file: int, span: array_chunks.Span) -> int:
  """Reads a span of an open file; returns its checksum.

  Raises:
    OSError: It cannot be read.
  """
  location, memory = span.location, span.target
  if memory is None:
    memory = np.empty(location.size, np.uint8).data
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
