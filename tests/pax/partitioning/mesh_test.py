# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Meshes hold the right devices, and say what is missing."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from pax.partitioning import mesh as mesh_lib

_AXES = ('replica', 'data', 'mdl')


@dataclasses.dataclass(frozen=True)
class _Device:
  id: int
  slice_index: int
  process_index: int = 0
  platform: str = 'fake'
  device_kind: str = 'fake'
  client: object = None


def test_shape_and_names():
  mesh = mesh_lib.create_mesh([1, 4, 2], [1, 1, 1], _AXES)
  assert dict(mesh.shape) == {'replica': 1, 'data': 4, 'mdl': 2}
  assert set(mesh.devices.flat) == set(jax.devices())


def test_fewer_devices_than_there_are():
  mesh = mesh_lib.create_mesh([1, 2, 1], None, _AXES)
  assert list(mesh.devices.flat) == jax.devices()[:2]


@pytest.mark.parametrize(
  ('ici', 'dcn', 'name'),
  [
    ([0, 2, 1], None, 'ici_mesh_shape'),
    ([-4, -2, 1], None, 'ici_mesh_shape'),
    ([4.0, 2, 1], None, 'ici_mesh_shape'),
    ('421', None, 'ici_mesh_shape'),
    ([8, 1, 1], [0, 1, 1], 'dcn_mesh_shape'),
  ],
)
def test_sizes_are_positive_integers(ici, dcn, name):
  with pytest.raises(ValueError, match=f'{name} must have positive integers'):
    mesh_lib.create_mesh(ici, dcn, _AXES)


def test_slices_are_contiguous_along_the_dcn_axis():
  # Interleaved on purpose: device i is on slice i % 2.
  devices = [_Device(id=i, slice_index=i % 2) for i in range(8)]
  array = mesh_lib.create_mesh(
    [1, 2, 2], [1, 2, 1], _AXES, devices=devices
  ).devices
  assert array.shape == (1, 4, 2)
  slices = np.vectorize(lambda device: device.slice_index)(array)
  assert (slices[:, :2] == 0).all()
  assert (slices[:, 2:] == 1).all()


@dataclasses.dataclass(frozen=True)
class _Tpu(_Device):
  platform: str = 'tpu'
  device_kind: str = 'TPU v4'
  coords: tuple[int, ...] = ()
  core_on_chip: int = 0


def _torus(slice_index, first=0):
  """Returns the chips of a slice of 4 x 4 x 4."""
  return [
    _Tpu(id=first + i, slice_index=slice_index, coords=(x, y, z))
    for i, (z, y, x) in enumerate(np.ndindex(4, 4, 4))
  ]


@pytest.mark.parametrize('contiguous', [True, False])
def test_contiguous_submeshes_are_planes_of_the_torus(contiguous):
  array = mesh_lib.create_mesh(
    [1, 16, 4],
    [2, 1, 1],
    _AXES,
    devices=[*_torus(0), *_torus(1, first=64)],
    contiguous_submeshes=contiguous,
  ).devices
  assert array.shape == (2, 16, 4)
  for i, of_slice in enumerate(array):
    assert {device.slice_index for device in of_slice.flat} == {i}
    planes = [
      {device.coords[2] for device in rows.flat}
      for rows in np.split(of_slice, 4)
    ]
    assert all(len(plane) == 1 for plane in planes) == contiguous


def test_without_slices_the_order_makes_them():
  array = mesh_lib.create_mesh([1, 2, 2], [2, 1, 1], _AXES).devices
  assert list(array[0].flat) == jax.devices()[:4]
  assert list(array[1].flat) == jax.devices()[4:]


def test_too_few_devices_names_the_flags():
  with pytest.raises(ValueError) as error:
    mesh_lib.create_mesh([1, 16, 4], None, _AXES)
  text = str(error.value)
  assert 'needs 64 devices and found 8 (cpu)' in text
  assert '--host_device_count=64' in text
  assert '--set ICI_MESH_SHAPE=[1,8,1]' in text
  with pytest.raises(ValueError, match=r'--set DCN_MESH_SHAPE=\[1,1,1\]'):
    mesh_lib.create_mesh([1, 4, 1], [4, 1, 1], _AXES)


def test_several_hosts_use_all_devices():
  devices = [_Device(id=i, slice_index=0, process_index=i) for i in range(2)]
  with pytest.raises(ValueError, match='needs 1 devices and found 2') as error:
    mesh_lib.create_mesh([1, 1, 1], None, _AXES, devices=devices)
  assert '--host_device_count' not in str(error.value)


def test_several_hosts_simulate_their_share_of_the_devices():
  devices = [_Device(id=i, slice_index=0, process_index=i) for i in range(2)]
  with pytest.raises(ValueError) as error:
    mesh_lib.create_mesh([1, 8, 1], None, _AXES, devices=devices)
  text = str(error.value)
  assert 'needs 8 devices and found 2 of 2 processes (fake)' in text
  assert 'pass --host_device_count=4 to' in text


def test_lengths_must_agree():
  with pytest.raises(ValueError, match='equally long'):
    mesh_lib.create_mesh([1, 1], [1, 1, 1], _AXES)


def test_replica_mesh():
  mesh = mesh_lib.create_replica_mesh('batch')
  assert dict(mesh.shape) == {'batch': 8}


def test_an_axis_may_be_part_of_a_dimension_of_the_torus(monkeypatch):
  # As of TPU slices: 16 along an axis are no whole dimensions of 8 x 8 x 8.
  devices, asked = jax.devices()[:4], []

  def create(shape, found, **options):
    asked.append(options)
    if not options.get('allow_split_physical_axes'):
      raise NotImplementedError('no assignment')
    return np.reshape(found, shape)

  monkeypatch.setattr(mesh_lib.mesh_utils, 'create_device_mesh', create)
  made = mesh_lib.create_mesh([2, 2], None, ('data', 'mdl'), devices=devices)
  assert made.devices.tolist() == np.reshape(devices, (2, 2)).tolist()
  assert [one.get('allow_split_physical_axes') for one in asked] == [None, True]
