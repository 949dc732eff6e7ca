# SPDX-License-Identifier: Apache-2.0
"""Device meshes: fast links within a slice (ICI), slow ones between (DCN)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import mesh_utils
from jax.sharding import Mesh

Device = jax.Device


def create_mesh(
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None,
  axis_names: Sequence[str],
  *,
  devices: Sequence[Device] | None = None,
  contiguous_submeshes: bool = False,
) -> Mesh:
  """Returns the mesh of shape ICI x DCN, element by element.

  Along each axis the devices of a slice are neighbours and slices come one
  after the other, so that only the DCN part of an axis crosses slices.

  Raises:
    ValueError: the shapes do not fit each other, or the devices at hand.
  """
  ici = list(ici_mesh_shape)
  dcn = [1] * len(ici) if dcn_mesh_shape is None else list(dcn_mesh_shape)
  if not len(ici) == len(dcn) == len(axis_names):
    raise ValueError(
      'ici_mesh_shape, dcn_mesh_shape and mesh_axis_names must be equally '
      f'long, got {ici}, {dcn} and {list(axis_names)}'
    )
  devices = _needed(devices, ici, dcn)
  if math.prod(dcn) == 1:
    array = _of_slice(ici, devices, contiguous_submeshes)
  else:
    array = _hybrid(ici, dcn, devices, contiguous_submeshes)
  return Mesh(array, tuple(axis_names))


def create_replica_mesh(
  axis_name: str, devices: Sequence[Device] | None = None
) -> Mesh:
  """Returns a mesh of one axis over all devices, in their order."""
  devices = jax.devices() if devices is None else devices
  return Mesh(np.asarray(devices), (axis_name,))


def _needed(
  devices: Sequence[Device] | None, ici: list[int], dcn: list[int]
) -> list[Device]:
  """Returns the devices that the mesh is made of."""
  found = list(jax.devices() if devices is None else devices)
  needs = math.prod(ici) * math.prod(dcn)
  if needs == len(found):
    return found
  one_process = len({device.process_index for device in found}) == 1
  if needs < len(found) and one_process:
    logging.warning(
      'the mesh %s x %s uses %d of %d devices', ici, dcn, needs, len(found)
    )
    return found[:needs]
  kind = found[0].platform if found else 'no'
  raise ValueError(
    f'the mesh needs {needs} devices and found {len(found)} ({kind}): '
    f'ici_mesh_shape {ici} x dcn_mesh_shape {dcn}; pass '
    f'--host_device_count={needs} to simulate them on the CPU, or '
    f'--set ICI_MESH_SHAPE={_smaller(ici, dcn, len(found))} to fit'
  )


def _smaller(ici: list[int], dcn: list[int], found: int) -> str:
  """Returns a mesh shape for `found` devices, on the axis that is widest."""
  shape = [1] * len(ici)
  shape[int(np.argmax(np.multiply(ici, dcn)))] = found
  text = ','.join(map(str, shape))
  rest = ','.join('1' for _ in dcn)
  extra = f' --set DCN_MESH_SHAPE=[{rest}]' if math.prod(dcn) > 1 else ''
  return f'[{text}]{extra}'


def _of_slice(
  ici: list[int], devices: list[Device], contiguous_submeshes: bool
) -> np.ndarray:
  """Returns the devices of a slice as an array of the mesh's shape.

  An axis has whole dimensions of the torus, or where none make it up parts.
  """
  try:
    return mesh_utils.create_device_mesh(
      ici, devices, contiguous_submeshes=contiguous_submeshes
    )
  except NotImplementedError as e:
    logging.warning('the mesh %s splits dimensions of the torus: %s', ici, e)
    return mesh_utils.create_device_mesh(
      ici,
      devices,
      contiguous_submeshes=contiguous_submeshes,
      allow_split_physical_axes=True,
    )


def _hybrid(
  ici: list[int],
  dcn: list[int],
  devices: list[Device],
  contiguous_submeshes: bool,
) -> np.ndarray:
  """Returns the devices of several slices as an array of the mesh's shape."""
  slices = _slices(devices, math.prod(dcn))
  blocks = [_of_slice(ici, block, contiguous_submeshes) for block in slices]
  rank = len(ici)
  stacked = np.empty([*dcn, *ici], dtype=object)
  for index, block in zip(np.ndindex(*dcn), blocks, strict=True):
    stacked[index] = block
  # (dcn..., ici...) -> (dcn0, ici0, dcn1, ici1, ...) -> products.
  order = [axis for i in range(rank) for axis in (i, rank + i)]
  return stacked.transpose(order).reshape(np.multiply(ici, dcn))


def _slices(devices: list[Device], count: int) -> list[list[Device]]:
  """Returns the devices by slice; by process, or in order, without slices."""
  for key in ('slice_index', 'process_index'):
    groups: dict[Any, list[Device]] = {}
    for device in devices:
      groups.setdefault(getattr(device, key, None), []).append(device)
    sizes = {len(group) for group in groups.values()}
    if len(groups) == count and len(sizes) == 1:
      return [groups[index] for index in sorted(groups)]
  size = len(devices) // count
  return [devices[i * size : (i + 1) * size] for i in range(count)]
