# SPDX-License-Identifier: Apache-2.0
"""The part of a sharded train state that this process writes, on the host.

A piece that several devices hold is written by one of them. What all devices
hold is dealt out among the processes, so that none writes everything.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class HostArray:
  """One leaf: its global shape, and the pieces this process writes."""

  shape: tuple[int, ...]
  dtype: np.dtype
  # The shape of one piece; all pieces are of the same.
  piece_shape: tuple[int, ...]
  pieces: list[tuple[Index, np.ndarray]]


def snapshot(named: dict[str, Any]) -> dict[str, HostArray]:
  """Copies from the devices what this process writes of each leaf.

  The copy is whole when this returns: the arrays may be donated then.
  """
  owned = [_owned_shards(i, leaf) for i, leaf in enumerate(named.values())]
  for shards in owned:
    for shard in shards:
      shard.data.copy_to_host_async()
  return {
    name: HostArray(
      tuple(leaf.shape),
      np.dtype(leaf.dtype),
      tuple(leaf.sharding.shard_shape(leaf.shape)),
      [(_bounded(s.index, leaf.shape), np.array(s.data)) for s in shards],
    )
    for (name, leaf), shards in zip(named.items(), owned, strict=True)
  }


def _owned_shards(position: int, leaf: jax.Array) -> list[Any]:
  shards = leaf.addressable_shards
  if leaf.is_fully_replicated:
    mine = position % jax.process_count() == jax.process_index()
    holders = {d.process_index for d in leaf.sharding.device_set}
    if mine or holders == {jax.process_index()}:
      return shards[:1]
    return []
  return [shard for shard in shards if shard.replica_id == 0]


def _bounded(index: Index, shape: tuple[int, ...]) -> Index:
  return tuple(
    slice(*part.indices(size)[:2])
    for part, size in zip(index, shape, strict=True)
  )
