# SPDX-License-Identifier: Apache-2.0
"""Restores by one replica, which sends the arrays to the others.

Where the state is replicated along axes of the mesh, only the processes of the
first replica read files. The interconnect of the devices is faster than storage
that thousands of processes read at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax.checkpoints import byte_groups
from pax.checkpoints.types import LeafDict

# Bytes per device of the arrays that one program sends.
_MAX_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class ReplicaBroadcast:
  """The first replica of a mesh, and the broadcast of its arrays."""

  mesh: Mesh
  # Mesh axes along which all arrays are replicated.
  axes: tuple[str, ...]

  @property
  def readers(self) -> tuple[int, ...]:
    """The processes of the first replica."""
    devices = self._first_mesh().devices.flat
    return tuple(sorted({device.process_index for device in devices}))

  def on_first_replica(self, abstract: LeafDict) -> LeafDict:
    """Returns the leaves with shardings over the devices of that replica."""
    mesh = self._first_mesh()
    return {
      name: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, leaf.sharding.spec)
      )
      for name, leaf in abstract.items()
    }

  def broadcast(self, abstract: LeafDict, values: LeafDict) -> LeafDict:
    """Returns the leaves on all replicas; all processes call it.

    Args:
      abstract: Shapes, dtypes and shardings of the leaves.
      values: The leaves on the first replica, in its processes.
    """
    leaves: dict[str, jax.Array] = {}
    for names in byte_groups.split_by_bytes(
      abstract, lambda name: _shard_bytes(abstract[name]), _MAX_BYTES
    ):
      stacked = [self._stacked(abstract[n], values.get(n)) for n in names]
      send = jax.jit(
        lambda arrays: [_first_of(array) for array in arrays],
        out_shardings=[abstract[name].sharding for name in names],
        donate_argnums=0,
      )
      leaves |= zip(names, send(stacked), strict=True)
    return leaves

  def _first_mesh(self) -> Mesh:
    index = tuple(
      slice(0, 1) if name in self.axes else slice(None)
      for name in self.mesh.axis_names
    )
    return Mesh(self.mesh.devices[index], self.mesh.axis_names)

  def _stacked(
    self, leaf: jax.ShapeDtypeStruct, value: jax.Array | None
  ) -> jax.Array:
    """Returns an array [num_replicas, *shape]: the value, then zeros."""
    num_replicas = math.prod(self.mesh.shape[axis] for axis in self.axes)
    sharding = NamedSharding(
      self.mesh, PartitionSpec(self.axes, *leaf.sharding.spec)
    )
    shards = value.addressable_shards if value is not None else ()
    own = {shard.device: shard.data for shard in shards}
    shape = (1, *leaf.sharding.shard_shape(leaf.shape))
    zeros = np.zeros(shape, leaf.dtype)
    return jax.make_array_from_single_device_arrays(
      (num_replicas, *leaf.shape),
      sharding,
      [
        own[device].reshape(shape)
        if device in own
        else jax.device_put(zeros, device)
        for device in sharding.addressable_devices
      ],
    )


def find(abstract: LeafDict) -> ReplicaBroadcast | None:
  """Returns how leaves are broadcast; None if all processes have to read.

  Args:
    abstract: Shapes, dtypes and shardings of the leaves.
  """
  shardings = [
    leaf.sharding
    for leaf in abstract.values()
    if isinstance(leaf.sharding, NamedSharding)
  ]
  meshes = {sharding.mesh for sharding in shardings}
  if len(shardings) < len(abstract) or len(meshes) != 1:
    return None
  (mesh,) = meshes
  if not isinstance(mesh, Mesh):
    return None
  used = {axis for sharding in shardings for axis in _axes_of(sharding.spec)}
  axes = tuple(
    axis
    for axis in mesh.axis_names
    if axis not in used and mesh.shape[axis] > 1
  )
  replica = ReplicaBroadcast(mesh, axes)
  is_needed = len(replica.readers) < len(
    {d.process_index for d in mesh.devices.flat}
  )
  return replica if is_needed else None


def _axes_of(spec: PartitionSpec) -> Iterator[str]:
  for entry in spec:
    if isinstance(entry, str):
      yield entry
    elif entry is not None:
      yield from entry


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
  """Returns the bytes of a leaf on each device."""
  shape = leaf.sharding.shard_shape(leaf.shape)
  return math.prod(shape) * np.dtype(leaf.dtype).itemsize


def _first_of(array: jax.Array) -> jax.Array:
  """Returns `array[0]` of an array that is zero elsewhere, bit by bit.

  A sum of integers keeps the bits, that of floating-point numbers does not keep
  negative zeros and all NaNs.
  """
  dtype = array.dtype
  if dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.integer):
    # Some collectives do not support integers of 16 or of fewer than 8 bits.
    wide = array.astype(jnp.int32) if dtype.itemsize < 4 else array
    return jnp.sum(wide, axis=0, dtype=wide.dtype).astype(dtype)
  words = jnp.uint32 if dtype.itemsize % 4 == 0 else jnp.uint8
  bits = jax.lax.bitcast_convert_type(array, words)
  total = jnp.sum(bits, axis=0, dtype=words)
  return jax.lax.bitcast_convert_type(total, dtype)
