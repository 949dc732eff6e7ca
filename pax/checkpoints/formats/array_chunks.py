# SPDX-License-Identifier: Apache-2.0
"""Chunks of arrays: their places in files and in memory.

A reader fills the memory from the files; a save computes the checksums of its
files from the memory that it has written.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import NamedTuple

import jax
import numpy as np

from pax.checkpoints.formats import tensorstore_format
from pax.checkpoints.formats.chunk_index import ChunkIndex, Location
from pax.checkpoints.formats.host_arrays import Index


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
  """A part of an array that devices of this process have."""

  index: Index
  data: np.ndarray


class Copy(NamedTuple):
  """A part of a chunk, and its place in a shard."""

  target: np.ndarray
  source: Index


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Span:
  """A chunk in a file, or a part of its bytes."""

  location: Location
  # The place of the bytes in a shard. None if they have to be copied.
  target: memoryview | None = None
  copies: Sequence[Copy] = ()
  chunk_shape: tuple[int, ...] = ()

  def copy(self, data: np.ndarray) -> None:
    """Copies parts of the chunk to shards; `data` has its bytes."""
    for target, source in self.copies:
      target[...] = data.view(target.dtype).reshape(self.chunk_shape)[source]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredArray:
  """An array whose chunks are stored, not compressed."""

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

  def spans(self, shards: Collection[Shard]) -> Iterator[Span]:
    """Yields what has to be read; copies the chunks that the index has."""
    for value, copies in self._places(shards):
      if isinstance(value, bytes):
        span = Span(
          location=Location('', 0, len(value)),
          copies=copies,
          chunk_shape=self.chunk_shape,
        )
        span.copy(np.frombuffer(value, np.uint8))
      elif (memory := self._memory(copies)) is not None:
        yield Span(location=value, target=memory)
      else:
        yield Span(location=value, copies=copies, chunk_shape=self.chunk_shape)

  def contents(
    self, shards: Collection[Shard]
  ) -> Iterator[tuple[Location, memoryview]]:
    """Yields chunks whose bytes are consecutive in a shard, and these bytes."""
    for value, copies in self._places(shards):
      if isinstance(value, Location):
        memory = self._memory(copies)
        if memory is not None:
          yield value, memory

  def _places(
    self, shards: Collection[Shard]
  ) -> Iterator[tuple[bytes | Location, list[Copy]]]:
    """Yields the chunks that intersect the shards."""
    for cell, value in self.chunks.items():
      copies = [
        copy
        for shard in shards
        if (copy := self._copy(cell, shard)) is not None
      ]
      if copies:
        yield value, copies

  def _memory(self, copies: Sequence[Copy]) -> memoryview | None:
    """Returns the bytes of a chunk in a shard; None if not consecutive."""
    target = copies[0].target
    is_direct = len(copies) == 1 and target.flags.c_contiguous
    if is_direct and target.shape == self.chunk_shape:
      return target.reshape(-1).view(np.uint8).data
    return None

  def _copy(self, cell: tuple[int, ...], shard: Shard) -> Copy | None:
    """Returns the intersection of a chunk with a shard; None if empty."""
    target, source = [], []
    for i, size, part in zip(cell, self.chunk_shape, shard.index, strict=True):
      start = max(i * size, part.start)
      stop = min((i + 1) * size, part.stop)
      if start >= stop:
        return None
      target.append(slice(start - part.start, stop - part.start))
      source.append(slice(start - i * size, stop - i * size))
    # With the ellipsis it is a view, of a scalar too.
    view: tuple[slice | EllipsisType, ...] = (*target, ...)
    return Copy(shard.data[view], tuple(source))


def find(
  index: ChunkIndex,
  sizes: Mapping[str, int],
  name: str,
  leaf: jax.ShapeDtypeStruct,
  *,
  is_partial: bool = False,
) -> StoredArray | None:
  """Returns the array of a leaf; None if TensorStore has to read it.

  Args:
    index: Where the chunks are.
    sizes: Sizes of the data files by path below the checkpoint.
    name: Name of the leaf.
    leaf: Its shape and dtype.
    is_partial: Whether chunks may be missing.
  """
  if 0 in leaf.shape:
    # Orbax does not save arrays without elements.
    return StoredArray(leaf=leaf, chunk_shape=leaf.shape, chunks={})
  metadata = index.metadata(name)
  if metadata is None:
    return None
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
  prefix, values = index.prefixes[name], index.values
  num_bytes = math.prod(chunk_shape) * np.dtype(leaf.dtype).itemsize
  chunks: dict[tuple[int, ...], bytes | Location] = {}
  for cell in itertools.product(*grid):
    value = values.get(f'{prefix}{separator.join(map(str, cell)) or 0}')
    if value is None and is_partial:
      continue
    if value is None or not _is_whole(value, num_bytes, sizes):
      return None
    chunks[cell] = value
  return StoredArray(leaf=leaf, chunk_shape=chunk_shape, chunks=chunks)


def _is_whole(
  value: bytes | Location, num_bytes: int, sizes: Mapping[str, int]
) -> bool:
  """Returns whether a chunk has this size, within its file."""
  if isinstance(value, Location):
    return value.size == num_bytes and value.end <= sizes.get(value.file, 0)
  return len(value) == num_bytes
