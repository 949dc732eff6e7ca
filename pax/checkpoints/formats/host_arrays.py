# SPDX-License-Identifier: Apache-2.0
"""Host copies of the parts of arrays that this process writes.

Of the replicas of a shard one writes it, or, if it is large, on the devices and
there are several processes, each replica writes a part of it. Other leaves that
are fully replicated are distributed over the processes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from pax import host_memory

Index = tuple[slice, ...]

# The programs that cut the parts are compiled first: smaller ones do not pay.
_MIN_PART_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class HostArray:
  """One leaf: its global shape, and the parts that this process writes."""

  shape: tuple[int, ...]
  dtype: np.dtype
  # Shape of every part, in all processes. It divides a shard.
  part_shape: tuple[int, ...]
  # (index into the global array, values) of each part.
  parts: list[tuple[Index, np.ndarray]]


def snapshot(leaves: Mapping[str, jax.Array]) -> dict[str, HostArray]:
  """Copies the parts that this process writes from the devices.

  The copy is complete on return, so that the arrays may be donated. On a CPU it
  may share the memory of the array, which is then not donated.
  """
  divided = [_DividedLeaf(i, leaf) for i, leaf in enumerate(leaves.values())]
  parts = [list(leaf.parts()) for leaf in divided]
  for _, data in (part for leaf_parts in parts for part in leaf_parts):
    data.copy_to_host_async()
  return {
    name: HostArray(
      tuple(leaf.shape),
      np.dtype(leaf.dtype),
      division.part_shape,
      [(index, np.asarray(data)) for index, data in leaf_parts],
    )
    for (name, leaf), division, leaf_parts in zip(
      leaves.items(), divided, parts, strict=True
    )
  }


class _DividedLeaf:
  """How the replicas of the shards of a leaf divide the writing."""

  def __init__(self, index: int, leaf: jax.Array):
    self._index = index
    self._leaf = leaf
    self._shard_shape = tuple(leaf.sharding.shard_shape(leaf.shape))
    # A single process writes one replica whole.
    self._num_replicas = _num_replicas(leaf) if jax.process_count() > 1 else 1
    self._axis = self._divided_axis()

  @property
  def part_shape(self) -> tuple[int, ...]:
    """Shape of what a replica writes of a shard."""
    shape = list(self._shard_shape)
    if self._axis is not None:
      shape[self._axis] //= self._num_replicas
    return tuple(shape)

  def parts(self) -> Iterator[tuple[Index, jax.Array]]:
    """Yields (index into the leaf, values on a device) of this process."""
    shape = self._leaf.shape
    if self._axis is None:
      for shard in self._whole_shards():
        yield bounded(shard.index, shape), shard.data
      return
    size = self.part_shape[self._axis]
    for shard in self._leaf.addressable_shards:
      index = list(bounded(shard.index, shape))
      start = shard.replica_id * size
      first = index[self._axis].start + start
      index[self._axis] = slice(first, first + size)
      yield tuple(index), _slice(shard.data, self._axis, start, size)

  def _whole_shards(self) -> Sequence[jax.Shard]:
    leaf = self._leaf
    shards = leaf.addressable_shards
    if not leaf.is_fully_replicated:
      return [shard for shard in shards if shard.replica_id == 0]
    owner = self._index % jax.process_count()
    is_written = leaf.is_fully_addressable or owner == jax.process_index()
    return shards[:1] if is_written else []

  def _divided_axis(self) -> int | None:
    """Returns the axis along which replicas divide a shard; None if one has it.

    All processes find the same.
    """
    part_bytes = math.prod(self._shard_shape) * self._leaf.dtype.itemsize
    part_bytes //= self._num_replicas
    if self._num_replicas == 1 or part_bytes < _MIN_PART_BYTES:
      return None
    if host_memory.is_offloaded(self._leaf.sharding):
      return None
    sizes = enumerate(self._shard_shape)
    return next((i for i, n in sizes if n % self._num_replicas == 0), None)


def _num_replicas(leaf: jax.Array) -> int:
  """Returns how many devices have the same shard."""
  if not leaf.size:
    return 1
  shard_shape = leaf.sharding.shard_shape(leaf.shape)
  num_shards = math.prod(leaf.shape) // math.prod(shard_shape)
  return len(leaf.sharding.device_set) // num_shards


def _slice(data: jax.Array, axis: int, start: int, size: int) -> jax.Array:
  """Returns a part of an array of one device, cut there."""
  # A mesh that the caller has set need not be of this device.
  mesh = jax.sharding.Mesh(np.array([*data.devices()]), ('device',))
  with jax.set_mesh(mesh):
    return jax.lax.slice_in_dim(data, start, start + size, axis=axis)


def bounded(index: Index, shape: tuple[int, ...]) -> Index:
  """Returns the index of a shard with explicit starts and stops."""
  return tuple(
    slice(*part.indices(size)[:2])
    for part, size in zip(index, shape, strict=True)
  )
