# SPDX-License-Identifier: Apache-2.0
"""Arrays over devices and processes."""

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
  """Whether this process computes on TPUs."""
  return jax.local_devices()[0].platform == 'tpu'


def global_mesh_defined() -> bool:
  """Whether a mesh is in use here (`jax.set_mesh`)."""
  return not jax.sharding.get_abstract_mesh().empty


def with_sharding_constraint(
  x: JTensor, axis_resources: PartitionSpec | None
) -> JTensor:
  """Returns `x` constrained to a spec; as it is without a mesh or a spec."""
  if axis_resources is None or not global_mesh_defined():
    return x
  return jax.lax.with_sharding_constraint(x, axis_resources)


def get_uneven_sharding_paddings(
  partition_spec: PartitionSpec,
  shape: Sequence[int],
  mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
) -> Sequence[int]:
  """Returns how much each dimension lacks to be split evenly."""
  sizes = dict(zip(mesh_axis_names, mesh_shape, strict=True))
  entries = [*partition_spec, *[None] * (len(shape) - len(partition_spec))]
  paddings = []
  for axes, size in zip(entries, shape, strict=True):
    names = (axes,) if isinstance(axes, str) else axes or ()
    paddings.append(-size % math.prod(sizes[name] for name in names))
  return paddings


def maybe_pad_uneven_sharding(
  xs: NestedJTensor,
  partition_specs: Any,
  unpadded_shapes: Any,
  mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
) -> NestedJTensor:
  """Returns arrays with zeros at the end of what is not split evenly."""

  def pad(x: Any, spec: PartitionSpec, shape: Sequence[int]) -> Any:
    if is_optax_masked_node(x):
      return x
    paddings = get_uneven_sharding_paddings(
      spec, shape, mesh_shape, mesh_axis_names
    )
    if not any(paddings):
      return x
    # Constrained first: a pad does not hand its sharding on to its operand.
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
  """Returns arrays without what `maybe_pad_uneven_sharding` added."""

  def cut(x: Any, spec: PartitionSpec, shape: Sequence[int]) -> Any:
    if is_optax_masked_node(x) or x.shape in ((0,), tuple(shape)):
      return x
    return with_sharding_constraint(jax.lax.slice(x, [0] * x.ndim, shape), spec)

  return jax.tree.map(cut, xs, partition_spec, unpadded_shapes, is_leaf=is_leaf)


def create_device_mesh(
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
  contiguous_submeshes: bool | None = False,
) -> np.ndarray:
  """Returns the devices of one slice, or of several, as an array of the mesh.

  Raises:
    ValueError: `dcn_mesh_shape` wants more slices than there are.
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
      f'dcn_mesh_shape {list(dcn_mesh_shape)} wants '
      f'{math.prod(dcn_mesh_shape)} slices of shape {list(ici_mesh_shape)}; '
      f'there are {len(devices)} devices'
    ) from error


def put_to_devices(
  host_array: np.ndarray, local_devices: Sequence[Any]
) -> list[JTensor]:
  """Returns the parts of an array, split along axis 0, one on each device."""
  if len(host_array) % len(local_devices):
    raise ValueError(
      f'Unable to put to devices shape {host_array.shape}: axis 0 must be a '
      f'multiple of {len(local_devices)} devices'
    )
  parts = np.split(host_array, len(local_devices), axis=0)
  return jax.device_put(parts, list(local_devices))


def make_array(
  host_arrays: Any,
  global_shapes: Any,
  global_mesh: Mesh,
  pspecs: Any | None = None,
  sharding: Mapping[str, Any] | None = None,
) -> Any:
  """Returns global arrays of which each process has its rows.

  Args:
    host_arrays: the rows of this process.
    global_shapes: ShapeDtypeStructs of the global arrays.
    global_mesh: the mesh, for `pspecs`.
    pspecs: PartitionSpecs; give these or `sharding`.
    sharding: Shardings.
  """
  if (pspecs is None) == (sharding is None):
    raise ValueError('make_array wants either pspecs or sharding')
  if sharding is None:
    sharding = jax.tree.map(lambda s: NamedSharding(global_mesh, s), pspecs)

  def make(host: np.ndarray, shape: jax.ShapeDtypeStruct, where: Any) -> Any:
    parts = put_to_devices(host, global_mesh.local_devices)
    return jax.make_array_from_single_device_arrays(shape.shape, where, parts)

  return jax.tree.map(make, host_arrays, global_shapes, sharding)


def get_global_input_shape_dtype(x: JTensor) -> jax.ShapeDtypeStruct:
  """Returns what the rows of all processes are together."""
  if not x.shape:
    raise ValueError('a batch must have a first dimension, got a scalar')
  shape = (x.shape[0] * jax.process_count(), *x.shape[1:])
  return jax.ShapeDtypeStruct(shape, x.dtype)


def maybe_unreplicate_for_fully_replicated(data: Any) -> Any:
  """Returns what one device holds of each array, equal on all of them."""
  return jax.tree.map(_first_shard, data)


def maybe_unreplicate_for_first_shard(data: Any) -> Any:
  """Returns what the first device holds of each array, which may differ."""
  return jax.tree.map(_first_shard, data)


def reshard(array: Any) -> np.ndarray:
  """Returns [B, ...] as [local devices, B / local devices, ...]."""
  return np.reshape(array, (jax.local_device_count(), -1, *array.shape[1:]))


def unshard(array: Any) -> np.ndarray:
  """Returns [devices, B, ...] as [devices * B, ...]."""
  return np.reshape(array, (-1, *array.shape[2:]))


def sync_global_devices(name: str) -> None:
  """Waits until all processes are here; `name` must be the same in all."""
  multihost_utils.sync_global_devices(name)


def set_globally_use_rbg_prng_key() -> None:
  """Makes `rbg` the kind of new random keys; call it before any JAX call."""
  jax.config.update('jax_default_prng_impl', 'rbg')


def _first_shard(x: Any) -> Any:
  if not isinstance(x, jax.Array) or not x.ndim or len(x.devices()) == 1:
    return x
  shard = x.addressable_shards[0].data
  is_one_row = not x.sharding.is_fully_replicated and len(shard) == 1
  return shard[0] if is_one_row else shard
