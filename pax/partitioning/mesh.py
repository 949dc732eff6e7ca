# SPDX-License-Identifier: Apache-2.0
"""Device meshes: ICI within a slice times DCN between slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from absl import logging
from jax.experimental import mesh_utils
from jax.sharding import Mesh

Device: TypeAlias = jax.Device


def create_mesh(
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None,
  axis_names: Sequence[str],
  *,
  devices: Sequence[Device] | None = None,
  contiguous_submeshes: bool = False,
) -> Mesh:
  """Returns the mesh whose shape is the elementwise product of ICI and DCN.

  Along each axis the devices of a slice are contiguous, so that only the DCN
  factor of an axis crosses slices.

  Args:
    ici_mesh_shape: Number of devices of a slice along each axis.
    dcn_mesh_shape: Number of slices along each axis; None is one slice.
    axis_names: Names of the axes.
    devices: The devices; None is all.
    contiguous_submeshes: Whether submeshes are contiguous in the TPU topology.

  Raises:
    ValueError: The shapes differ in length, have sizes that are not positive
      integers, or need other devices.
  """
  ici = list(ici_mesh_shape)
  dcn = [1] * len(ici) if dcn_mesh_shape is None else list(dcn_mesh_shape)
  if not len(ici) == len(dcn) == len(axis_names):
    raise ValueError(
      'ici_mesh_shape, dcn_mesh_shape and mesh_axis_names must be equally '
      f'long, got {ici}, {dcn} and {list(axis_names)}'
    )
  _check_sizes('ici_mesh_shape', ici)
  _check_sizes('dcn_mesh_shape', dcn)
  devices = _select_devices(devices, ici, dcn)
  if math.prod(dcn) == 1:
    array = _slice_array(ici, devices, contiguous_submeshes)
  else:
    array = _hybrid_array(ici, dcn, devices, contiguous_submeshes)
  return Mesh(array, tuple(axis_names))


def create_replica_mesh(
  axis_name: str, devices: Sequence[Device] | None = None
) -> Mesh:
  """Returns a one-axis mesh over the devices, by default over all."""
  devices = jax.devices() if devices is None else devices
  return Mesh(np.asarray(devices), (axis_name,))


def _check_sizes(name: str, shape: list[int]) -> None:
  if not all(isinstance(n, int | np.integer) and n > 0 for n in shape):
    raise ValueError(
      f'{name} must have positive integers, got {shape}; an axis that shards '
      'nothing has size 1'
    )


def _select_devices(
  devices: Sequence[Device] | None, ici: list[int], dcn: list[int]
) -> list[Device]:
  """Returns as many devices as the mesh needs."""
  available = list(jax.devices() if devices is None else devices)
  needed = math.prod(ici) * math.prod(dcn)
  if needed == len(available):
    return available
  num_processes = max(1, len({d.process_index for d in available}))
  if needed < len(available) and num_processes == 1:
    logging.warning(
      'the mesh %s x %s uses %d of %d devices',
      ici,
      dcn,
      needed,
      len(available),
    )
    return available[:needed]
  kind = available[0].platform if available else 'no'
  where = f' of {num_processes} processes' if num_processes > 1 else ''
  raise ValueError(
    f'the mesh needs {needed} devices and found {len(available)}{where}'
    f' ({kind}): ici_mesh_shape {ici} x dcn_mesh_shape {dcn}; pass '
    f'{_simulation(needed, num_processes)}--set'
    f' ICI_MESH_SHAPE={_smaller_mesh(ici, dcn, len(available))} to fit'
  )


def _simulation(needed: int, num_processes: int) -> str:
  """Returns the flag that simulates equally many devices in each process."""
  if needed % num_processes:
    return ''
  count = needed // num_processes
  return f'--host_device_count={count} to simulate them on the CPU, or '


def _smaller_mesh(ici: list[int], dcn: list[int], num_devices: int) -> str:
  """Returns the flags of a mesh with all devices on its longest axis."""
  shape = [1] * len(ici)
  shape[int(np.argmax(np.multiply(ici, dcn)))] = num_devices
  text = ','.join(map(str, shape))
  rest = ','.join('1' for _ in dcn)
  extra = f' --set DCN_MESH_SHAPE=[{rest}]' if math.prod(dcn) > 1 else ''
  return f'[{text}]{extra}'


def _slice_array(
  ici: list[int], devices: list[Device], contiguous_submeshes: bool
) -> np.ndarray:
  """Returns the devices of a slice as an array of shape `ici`.

  An axis consists of whole physical axes of the TPU topology if possible, else
  of parts.
  """
  try:
    return mesh_utils.create_device_mesh(
      ici, devices, contiguous_submeshes=contiguous_submeshes
    )
  except NotImplementedError as e:
    logging.warning(
      'the mesh %s splits physical axes of the TPU topology: %s', ici, e
    )
    return mesh_utils.create_device_mesh(
      ici,
      devices,
      contiguous_submeshes=contiguous_submeshes,
      allow_split_physical_axes=True,
    )


def _hybrid_array(
  ici: list[int],
  dcn: list[int],
  devices: list[Device],
  contiguous_submeshes: bool,
) -> np.ndarray:
  """Returns the devices of several slices as an array of shape ICI x DCN."""
  slices = _group_by_slice(devices, math.prod(dcn))
  arrays = [
    _slice_array(ici, slice_devices, contiguous_submeshes)
    for slice_devices in slices
  ]
  rank = len(ici)
  stacked = np.empty([*dcn, *ici], dtype=object)
  for index, array in zip(np.ndindex(*dcn), arrays, strict=True):
    stacked[index] = array
  # (dcn..., ici...) -> (dcn0, ici0, dcn1, ici1, ...) -> products.
  order = [axis for i in range(rank) for axis in (i, rank + i)]
  return stacked.transpose(order).reshape(np.multiply(ici, dcn))


def _group_by_slice(devices: list[Device], count: int) -> list[list[Device]]:
  """Returns the devices by slice, else by process, else in equal parts."""
  for key in ('slice_index', 'process_index'):
    groups: dict[Any, list[Device]] = {}
    for device in devices:
      groups.setdefault(getattr(device, key, None), []).append(device)
    sizes = {len(group) for group in groups.values()}
    if len(groups) == count and len(sizes) == 1:
      return [groups[index] for index in sorted(groups)]
  size = len(devices) // count
  return [devices[i * size : (i + 1) * size] for i in range(count)]
