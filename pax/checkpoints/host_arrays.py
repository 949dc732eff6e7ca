# SPDX-License-Identifier: Apache-2.0
"""Host copies of the shards that this process writes.

Of the replicas of a shard one process writes one. Fully replicated leaves are
distributed over the processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class HostArray:
  """One leaf: its global shape, and the shards that this process writes."""

  shape: tuple[int, ...]
  dtype: np.dtype
  # Shape of every shard.
  shard_shape: tuple[int, ...]
  # (index into the global array, values) of each shard.
  shards: list[tuple[Index, np.ndarray]]


def snapshot(leaves: Mapping[str, jax.Array]) -> dict[str, HostArray]:
  """Copies the shards that this process writes from the devices.

  The copy is complete on return, so that the arrays may be donated.
  """
  owned = [_owned_shards(i, leaf) for i, leaf in enumerate(leaves.values())]
  for shards in owned:
    for shard in shards:
      shard.data.copy_to_host_async()
  return {
    name: _host_array(leaf, shards, np.array)
    for (name, leaf), shards in zip(leaves.items(), owned, strict=True)
  }


def view(leaf: jax.Array) -> HostArray:
  """Returns the shards of the first replica that this process has.

  JAX keeps the copy of a shard in the memory of the host as long as the array:
  if there is one, none is made.
  """
  shards = [shard for shard in leaf.addressable_shards if not shard.replica_id]
  return _host_array(leaf, shards, np.asarray)


def _host_array(
  leaf: jax.Array,
  shards: Sequence[jax.Shard],
  to_host: Callable[[jax.Array], np.ndarray],
) -> HostArray:
  return HostArray(
    tuple(leaf.shape),
    np.dtype(leaf.dtype),
    tuple(leaf.sharding.shard_shape(leaf.shape)),
    [(bounded(s.index, leaf.shape), to_host(s.data)) for s in shards],
  )


def _owned_shards(leaf_index: int, leaf: jax.Array) -> Sequence[jax.Shard]:
  shards = leaf.addressable_shards
  if leaf.is_fully_replicated:
    is_owner = leaf_index % jax.process_count() == jax.process_index()
    if is_owner or leaf.is_fully_addressable:
      return shards[:1]
    return []
  return [shard for shard in shards if shard.replica_id == 0]


def bounded(index: Index, shape: tuple[int, ...]) -> Index:
  """Returns the index of a shard with explicit starts and stops."""
  return tuple(
    slice(*part.indices(size)[:2])
    for part, size in zip(index, shape, strict=True)
  )
