# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Machines by name, as Google Cloud and NVIDIA count."""

from __future__ import annotations

import pytest

from pax.aot import topology


# Chips and tori of Google Cloud's pages on each version.
@pytest.mark.parametrize(
  ('name', 'devices', 'shape'),
  [
    ('v4-8', 4, (2, 2, 1)),
    ('v4-64', 32, (2, 4, 4)),
    ('v4-128', 64, (4, 4, 4)),
    ('v4-512', 256, (4, 8, 8)),
    ('v4-4096', 2048, (8, 16, 16)),
    ('v5e-1', 1, (1, 1)),
    ('v5e-8', 8, (2, 4)),
    ('v5litepod-16', 16, (4, 4)),
    ('v5e-256', 256, (16, 16)),
    ('v5p-8', 4, (2, 2, 1)),
    ('v5p-12288', 6144, (16, 16, 24)),
    ('v6e-64', 64, (8, 8)),
    ('tpu7x-64', 64, (2, 4, 4)),
    ('v3-8', 8, (2, 2)),
    ('v5p:4x4x8', 128, (4, 4, 8)),
  ],
)
def test_tpu_slices(name, devices, shape):
  found = topology.parse(name)
  assert found.num_devices == devices
  assert found.shape == shape
  assert found.num_slices == 1
  assert found.platform == 'tpu' and found.chip.hbm_bytes


def test_two_slices():
  found = topology.parse('v4-128x2')
  assert (found.devices_per_slice, found.num_slices) == (64, 2)
  assert found.num_devices == 128


def test_hosts_of_gpus_are_joined_as_slices_are():
  found = topology.parse('16x8xh100')
  assert (found.devices_per_slice, found.num_slices) == (8, 16)
  assert found.chip.kind == 'H100' and found.chip.hbm_bytes == 80e9


def test_gpus_without_their_compiler(monkeypatch):
  monkeypatch.setattr(topology.gpus, '_has_plugin', lambda: False)
  with pytest.raises(ValueError, match=r'8xh100: the CUDA compiler.*cuda13'):
    topology.parse('8xh100').devices()


def test_simulated_cpus_are_real_devices():
  found = topology.parse('cpu:4')
  assert found.chip is None and found.missing_compiler() is None
  assert [d.platform for d in found.devices()] == ['cpu'] * 4


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('v4-6', r'no slice of 6.*v4:4x4x4'),
    ('v4-7', 'no slice of 7'),
    ('v9-8', 'is none; as in v4-128'),
    ('8xh999', 'no figures of h999.*h100'),
    ('', 'is none'),
  ],
)
def test_names_of_no_machine(name, says):
  with pytest.raises(ValueError, match=says):
    topology.parse(name)


@pytest.mark.parametrize(
  ('ici', 'dcn', 'name'),
  [
    (64, 1, 'v4-128'),
    (64, 2, 'v4-128x2'),
    (1, 1, 'v4-8'),
    (1024, 1, 'v4-2048'),
  ],
)
def test_a_mesh_has_its_natural_machine(ici, dcn, name):
  assert topology.natural(ici, dcn) == name
  assert topology.parse(name).num_devices == max(4, ici) * dcn


@pytest.mark.parametrize(
  ('ici', 'dcn', 'name'),
  [(16, 1, '16xa100'), (16, 8, '8x16xa100'), (8, 32, '32x8xh100'),
   (128, 1, '16x8xh100'), (1, 1, '1xh100')],
)  # fmt: skip
def test_a_mesh_of_gpus_has_hosts(ici, dcn, name):
  assert topology.natural(ici, dcn, gpus=True) == name
  assert topology.parse(name).num_devices == ici * dcn
