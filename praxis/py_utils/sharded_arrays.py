# SPDX-License-Identifier: Apache-2.0
"""Arrays that are sharded over the devices of one or several processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from praxis.py_utils.tree import is_optax_masked_node
from praxis.pytypes import JTensor, NestedJTensor


def is_tpu() -> bool:
  """Whether the local devices are TPUs."""
  return jax.local_devices()[0].platform == 'tpu'


def global_mesh_defined() -> bool:
  """Whether a mesh is set (`jax.set_mesh`)."""
  return not jax.sharding.get_abstract_mesh().empty


def mesh_axes(entry: Any) -> tuple[str, ...]:
  """Returns the mesh axes that one entry of a PartitionSpec names.

  An entry is an axis, a sequence of axes, or None.
  """
  return (entry,) if isinstance(entry, str) else tuple(entry or ())


def with_sharding_constraint(
  x: JTensor, axis_resources: PartitionSpec | None
) -> JTensor:
  """Returns `x` constrained to a spec, or unchanged without a mesh or spec."""
  if axis_resources is None or not global_mesh_defined():
    return x
  return jax.lax.with_sharding_constraint(x, axis_resources)


def get_uneven_sharding_paddings(
  partition_spec: PartitionSpec,
  shape: Sequence[int],
  mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
) -> Sequence[int]:
  """Returns the padding that makes each dimension divisible by its shards."""
  sizes = dict(zip(mesh_axis_names, mesh_shape, strict=True))
  entries = [*partition_spec, *[None] * (len(shape) - len(partition_spec))]
  paddings = []
  for entry, size in zip(entries, shape, strict=True):
    num_shards = math.prod(sizes[axis] for axis in mesh_axes(entry))
    paddings.append(-size % num_shards)
  return paddings


def maybe_pad_uneven_sharding(
  xs: NestedJTensor,
  partition_specs: Any,
  unpadded_shapes: Any,
  mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
) -> NestedJTensor:
  """Returns arrays zero-padded at the end of unevenly sharded dimensions."""

  def pad(x: Any, spec: PartitionSpec, shape: Sequence[int]) -> Any:
    if is_optax_masked_node(x):
      return x
    paddings = get_uneven_sharding_paddings(
      spec, shape, mesh_shape, mesh_axis_names
    )
    if not any(paddings):
      return x
    # Sharding propagation does not go from a pad to its operand.
    x = with_sharding_constraint(x, spec)
    return jnp.pad(x, [(0, padding) for padding in paddings])

  return jax.tree.map(
    pad, xs, partition_specs, unpadded_shapes, is_leaf=is_optax_masked_node
  )


def maybe_slice_uneven_sharding(
  xs: NestedJTensor,
  partition_spec: Any,
  unpadded_shapes: Any,
  is_leaf: Any = None,
) -> NestedJTensor:
  """Returns arrays without the padding of `maybe_pad_uneven_sharding`."""

  def unpad(x: Any, spec: PartitionSpec, shape: Sequence[int]) -> Any:
    if is_optax_masked_node(x) or x.shape in ((0,), tuple(shape)):
      return x
    return with_sharding_constraint(jax.lax.slice(x, [0] * x.ndim, shape), spec)

  return jax.tree.map(
    unpad, xs, partition_spec, unpadded_shapes, is_leaf=is_leaf
  )


def create_device_mesh(
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
  contiguous_submeshes: bool | None = False,
) -> np.ndarray:
  """Returns the devices of one or several slices in the shape of the mesh.

  Raises:
    ValueError: `dcn_mesh_shape` has another number of slices than exist.
  """
  if dcn_mesh_shape is None or max(dcn_mesh_shape) == 1:
    return mesh_utils.create_device_mesh(
      ici_mesh_shape, contiguous_submeshes=bool(contiguous_submeshes)
    )
  devices = jax.devices()
  if devices[-1].platform == 'cpu':
    shape = np.multiply(ici_mesh_shape, dcn_mesh_shape)
    return np.array(devices).reshape(shape)
  try:
    return mesh_utils.create_hybrid_device_mesh(
      ici_mesh_shape, dcn_mesh_shape, devices=devices
    )
  except (AssertionError, ValueError) as error:
    raise ValueError(
      f'dcn_mesh_shape {list(dcn_mesh_shape)} needs '
      f'{math.prod(dcn_mesh_shape)} slices of shape {list(ici_mesh_shape)}; '
      f'there are {len(devices)} devices'
    ) from error


def put_to_devices(
  host_array: np.ndarray, local_devices: Sequence[Any]
) -> list[JTensor]:
  """Splits an array along axis 0 and puts one shard on each device.

  Raises:
    ValueError: the devices do not divide axis 0.
  """
  if len(host_array) % len(local_devices):
    raise ValueError(
      f'Unable to put to devices shape {host_array.shape}: axis 0 must be a '
      f'multiple of {len(local_devices)} devices'
    )
  shards = np.split(host_array, len(local_devices), axis=0)
  return jax.device_put(shards, list(local_devices))


def make_array(
  host_arrays: Any,
  global_shapes: Any,
  global_mesh: Mesh,
  pspecs: Any | None = None,
  sharding: Mapping[str, Any] | None = None,
) -> Any:
  """Returns global arrays assembled from the rows of each process.

  Args:
    host_arrays: the rows of this process.
    global_shapes: ShapeDtypeStructs of the global arrays.
    global_mesh: the mesh, for `pspecs`.
    pspecs: PartitionSpecs; give these or `sharding`.
    sharding: Shardings.

  Raises:
    ValueError: both or neither of `pspecs` and `sharding` are given.
  """
  if (pspecs is None) == (sharding is None):
    raise ValueError('make_array takes either pspecs or sharding')
  if sharding is None:
    sharding = jax.tree.map(lambda s: NamedSharding(global_mesh, s), pspecs)

  def assemble(
    rows: np.ndarray, global_shape: jax.ShapeDtypeStruct, target: Any
  ) -> Any:
    shards = put_to_devices(rows, global_mesh.local_devices)
    return jax.make_array_from_single_device_arrays(
      global_shape.shape, target, shards
    )

  return jax.tree.map(assemble, host_arrays, global_shapes, sharding)


def get_global_input_shape_dtype(x: JTensor) -> jax.ShapeDtypeStruct:
  """Returns the global shape of a batch that each process holds a part of.

  Raises:
    ValueError: `x` is a scalar.
  """
  if not x.shape:
    raise ValueError('a batch must have a first dimension, got a scalar')
  shape = (x.shape[0] * jax.process_count(), *x.shape[1:])
  return jax.ShapeDtypeStruct(shape, x.dtype)


def maybe_unreplicate_for_fully_replicated(data: Any) -> Any:
  """Returns each fully replicated array as the copy on one device."""
  return jax.tree.map(_first_shard, data)


def maybe_unreplicate_for_first_shard(data: Any) -> Any:
  """Returns the first device's shard of each array; others may differ."""
  return jax.tree.map(_first_shard, data)


def convert_fully_replicated_array_to_pmap_array(arr: jax.Array) -> jax.Array:
  """Returns a replicated array with a leading dimension of local devices.

  Each local device holds one row, as the inputs of `jax.pmap` do.
  """
  shards = [shard.data[None] for shard in arr.addressable_shards]
  devices = np.array([shard.device for shard in arr.addressable_shards])
  sharding = NamedSharding(Mesh(devices, ('_pmap',)), PartitionSpec('_pmap'))
  return jax.make_array_from_single_device_arrays(
    (len(shards), *arr.shape), sharding, shards
  )


def convert_host_local_array_to_global_array(arr: jax.Array) -> jax.Array:
  """Returns the rows of an output of `jax.pmap` as one replicated array.

  The rows, one per device, must be equal.
  """
  shards = sorted(arr.addressable_shards, key=lambda shard: shard.device.id)
  rows = [shard.data[0] for shard in shards]
  mesh = Mesh(np.array(jax.devices()), ('x',))
  return jax.make_array_from_single_device_arrays(
    arr.shape[1:], NamedSharding(mesh, PartitionSpec()), rows
  )


def reshard(array: Any) -> np.ndarray:
  """Returns [B, ...] as [local devices, B / local devices, ...]."""
  count = jax.local_device_count()
  shape = (count, array.shape[0] // count, *array.shape[1:])
  return np.reshape(array, shape)


def unshard(array: Any) -> np.ndarray:
  """Returns [devices, B, ...] as [devices * B, ...]."""
  return np.reshape(array, (-1, *array.shape[2:]))


def sync_global_devices(name: str) -> None:
  """Blocks until all processes call it with the same `name`."""
  multihost_utils.sync_global_devices(name)


def set_globally_use_rbg_prng_key() -> None:
  """Makes `rbg` the default PRNG; call it before any other JAX call."""
  jax.config.update('jax_default_prng_impl', 'rbg')


def _first_shard(x: Any) -> Any:
  if not isinstance(x, jax.Array) or not x.ndim:
    return x
  if len(x.devices()) == 1:
    # `jax.pmap` shards a first dimension over its axis also on one device.
    spec: Sequence[Any] = getattr(x.sharding, 'spec', ())
    is_one_row = len(x) == 1 and bool(spec) and spec[0] is not None
    return x[0] if is_one_row else x
  shard = x.addressable_shards[0].data
  is_one_row = not x.sharding.is_fully_replicated and len(shard) == 1
  return shard[0] if is_one_row else shard
