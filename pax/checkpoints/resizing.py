# SPDX-License-Identifier: Apache-2.0
"""Reads leaves to other shapes and dtypes than those that were saved.

paxml pads arrays to divide them over a mesh, so that one checkpoint is restored
to different shapes. A dimension is padded with zeros, or truncated, at its end.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.checkpoints.types import LeafDict


def read_resized(
  checkpoint: CheckpointReader, abstract: LeafDict
) -> dict[str, jax.Array]:
  """Returns the leaves with the shapes, dtypes and shardings of `abstract`.

  Args:
    checkpoint: The checkpoint.
    abstract: Shapes, dtypes and NamedShardings by leaf name.

  Raises:
    CheckpointError: A leaf is missing, or has another number of dimensions.
    CorruptCheckpointError: Files differ from what was written.
  """
  saved = checkpoint.shapes
  sources = {}
  for name, leaf in abstract.items():
    shape, dtype = saved.get(name, (leaf.shape, leaf.dtype))
    if len(shape) != len(leaf.shape):
      # `checkpoint.read` reports the difference.
      shape, dtype = leaf.shape, leaf.dtype
    sharding = leaf.sharding
    if tuple(shape) != tuple(leaf.shape):
      sharding = NamedSharding(sharding.mesh, PartitionSpec())
    sources[name] = jax.ShapeDtypeStruct(
      shape, jnp.dtype(dtype), sharding=sharding
    )
  leaves = checkpoint.read(sources)
  return {name: _resize(leaves[name], leaf) for name, leaf in abstract.items()}


def read_numpy(
  checkpoint: CheckpointReader, names: list[str]
) -> dict[str, np.ndarray]:
  """Returns leaves as numpy arrays with the saved shapes and dtypes.

  Args:
    checkpoint: The checkpoint.
    names: Names of the leaves.

  Raises:
    CheckpointError: A leaf is missing.
    CorruptCheckpointError: Files differ from what was written.
  """
  saved = checkpoint.shapes
  sharding = jax.sharding.SingleDeviceSharding(_host_device())
  missing = jax.ShapeDtypeStruct((), np.float32)
  leaves = checkpoint.read(
    {
      name: jax.ShapeDtypeStruct(
        saved[name][0], jnp.dtype(saved[name][1]), sharding=sharding
      )
      if name in saved
      else missing
      for name in names
    }
  )
  return {name: np.array(leaves[name]) for name in names}


def _resize(value: jax.Array, leaf: jax.ShapeDtypeStruct) -> jax.Array:
  if value.shape != tuple(leaf.shape):
    value = value[tuple(slice(size) for size in leaf.shape)]
    value = jnp.pad(
      value,
      [
        (0, size - old)
        for size, old in zip(leaf.shape, value.shape, strict=True)
      ],
    )
    value = jax.device_put(value, leaf.sharding)
  return value.astype(leaf.dtype)


def _host_device() -> jax.Device:
  try:
    return jax.local_devices(backend='cpu')[0]
  except RuntimeError:  # JAX_PLATFORMS may leave out the CPU.
    return jax.local_devices()[0]
