# SPDX-License-Identifier: Apache-2.0
"""Assembles global batches on the mesh from the batches of all hosts."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax.partitioning import specs
from pax.steps import Batch


class BatchPlacer:
  """Converts host batches to global arrays; thread-safe."""

  def __init__(
    self,
    mesh: Mesh,
    batch_spec: Callable[[int], PartitionSpec],
    *,
    requires_even_batches: bool,
  ):
    """Places no batch.

    Args:
      mesh: The mesh.
      batch_spec: Rank of an input -> its PartitionSpec.
      requires_even_batches: Whether a batch that the mesh does not divide
        evenly is an error; otherwise steps shard it unevenly.
    """
    self._mesh = mesh
    self._batch_spec = batch_spec
    self._requires_even_batches = requires_even_batches
    self._shardings: dict[tuple[int, ...], NamedSharding] = {}
    # To a single device a jitted copy takes 1/7 of the time of device_put.
    self._copy = jax.jit(
      lambda batch: jax.tree.map(jnp.copy, batch),
      out_shardings=NamedSharding(mesh, PartitionSpec()),
    )

  def put(self, host_batch: Batch) -> Batch:
    """Returns the global batch; this host provides its own rows.

    Raises:
      ValueError: The rows cannot be sharded evenly.
    """
    if jax.process_count() > 1:
      return jax.tree.map(self._put_local_rows, host_batch)
    # Without jit a copy would have no mesh.
    if self._mesh.size == 1 and not jax.config.values['jax_disable_jit']:
      return self._copy(host_batch)
    shardings = jax.tree.map(lambda x: self._sharding(np.shape(x)), host_batch)
    return jax.device_put(host_batch, shardings)

  def global_spec(self, host_spec: Batch) -> Batch:
    """Returns shapes and shardings of the global batch.

    Args:
      host_spec: Shapes and dtypes of the batch of one host.
    """
    return self.shard_global_spec(global_shapes(host_spec))

  def shard_global_spec(self, batch: Batch) -> Batch:
    """Returns shapes and dtypes of a global batch with its shardings."""
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape,
        jax.dtypes.canonicalize_dtype(x.dtype),
        sharding=self._sharding(x.shape),
      ),
      batch,
    )

  def _put_local_rows(self, x: np.ndarray) -> jax.Array:
    shape = _global_shape(np.shape(x))
    return jax.make_array_from_process_local_data(
      self._sharding(shape), x, shape
    )

  def _sharding(self, shape: tuple[int, ...]) -> NamedSharding:
    if shape not in self._shardings:
      self._shardings[shape] = self._make_sharding(shape)
    return self._shardings[shape]

  def _make_sharding(self, shape: tuple[int, ...]) -> NamedSharding:
    mesh = self._mesh
    spec = self._batch_spec(len(shape))
    even_sharding = NamedSharding(
      mesh, specs.drop_uneven_axes(spec, shape, mesh)
    )
    is_even = specs.is_even(spec, shape, mesh)
    if self._requires_even_batches and not is_even:
      raise _uneven_error(shape, spec, mesh)
    # One process may replicate rows: the step shards them unevenly.
    if jax.process_count() == 1 or not shape:
      return even_sharding
    # With several, the shards of a host must be the rows that it provides.
    for sharding in (even_sharding, *_by_host(mesh)):
      if _is_host_local(sharding, shape):
        return sharding
    if is_even:
      raise _replicated_error(shape)
    raise _uneven_error(shape, spec, mesh)


def global_shapes(host_spec: Batch) -> Batch:
  """Returns shapes and dtypes of the global batch from those of one host."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(_global_shape(x.shape), x.dtype), host_spec
  )


def _uneven_error(
  shape: tuple[int, ...], spec: PartitionSpec, mesh: Mesh
) -> ValueError:
  num_shards = specs.num_shards(spec[:1], mesh)
  return ValueError(
    f'a global batch of {shape[0]} rows cannot be sharded evenly over '
    f'{num_shards} devices; make it a multiple of {num_shards}, e.g. with '
    '--set PERCORE_BATCH_SIZE=1'
  )


def _replicated_error(shape: tuple[int, ...]) -> ValueError:
  hosts = jax.process_count()
  return ValueError(
    f'several hosts hold the same of the {shape[0]} rows of a global batch, and'
    f' each of the {hosts} hosts provides {shape[0] // hosts} rows; let'
    ' task.train.inputs_split_mapping shard rows over all axes of the mesh'
  )


def _by_host(mesh: Mesh) -> list[NamedSharding]:
  """Returns the sharding of rows by host, if the mesh orders devices so."""
  owners = [device.process_index for device in mesh.devices.flat]
  hosts = sorted(set(owners))
  per_host = len(owners) // len(hosts)
  if owners != [host for host in hosts for _ in range(per_host)]:
    return []
  devices = mesh.devices.reshape(len(hosts), per_host)
  by_host = Mesh(devices, ('host', 'device of host'))
  return [NamedSharding(by_host, PartitionSpec('host'))]


def _is_host_local(sharding: NamedSharding, shape: tuple[int, ...]) -> bool:
  """Returns whether each host holds as many rows as it provides."""
  rows: dict[int, set[tuple[int, int]]] = {}
  device: jax.Device
  for device, index in sharding.devices_indices_map(shape).items():
    start, stop, _ = index[0].indices(shape[0])
    rows.setdefault(device.process_index, set()).add((start, stop))
  rows_per_host = shape[0] // jax.process_count()
  return all(
    sum(stop - start for start, stop in ranges) == rows_per_host
    for ranges in rows.values()
  )


def _global_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
  if not shape:
    return shape
  return (shape[0] * jax.process_count(), *shape[1:])
