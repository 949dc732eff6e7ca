# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Machines by name, and descriptions of GPUs for the CUDA compiler."""

from __future__ import annotations

import pytest

from pax.aot import topology
from pax.summaries import chips


# Chips and tori of Google Cloud's pages on each version.
@pytest.mark.parametrize(
  ('name', 'devices', 'torus'),
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
def test_tpu_slices(name, devices, torus):
  found = topology.parse_topology(name)
  assert found.num_devices == devices
  assert found.torus == torus
  assert found.num_slices == 1
  assert found.platform == 'tpu' and found.chip.hbm_bytes


def test_two_slices():
  found = topology.parse_topology('v4-128x2')
  assert (found.devices_per_slice, found.num_slices) == (64, 2)
  assert found.num_devices == 128


def test_hosts_of_gpus_are_joined_as_slices_are():
  found = topology.parse_topology('16x8xh100')
  assert (found.devices_per_slice, found.num_slices) == (8, 16)
  assert found.chip.kind == 'H100' and found.chip.hbm_bytes == 80e9


def test_boards_of_a_gpu_are_told_apart():
  found = topology.parse_topology('8xh100pcie')
  assert found.chip.kind == 'H100 PCIe' and found.chip.flops == 756e12
  assert topology.parse_topology('8xh100').chip.flops == 989e12


def test_gpus_without_their_compiler(monkeypatch):
  monkeypatch.setattr(topology, '_has_cuda_plugin', lambda: False)
  with pytest.raises(ValueError, match=r'8xh100: the CUDA compiler.*cuda13'):
    topology.parse_topology('8xh100').devices()


def test_simulated_cpus_are_real_devices():
  found = topology.parse_topology('cpu:4')
  assert found.chip is None and found.missing_compiler() is None
  assert [d.platform for d in found.devices()] == ['cpu'] * 4


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('v4-6', r'no slice of 6.*v4:4x4x4'),
    ('v4-7', 'has no slice of 7'),
    ('v9-8', r"unknown --topology='v9-8'; known: v4-128"),
    ('v4-0', "unknown --topology='v4-0'"),
    ('v4-8x0', "unknown --topology='v4-8x0'"),
    ('v5e-512', 'no slice of 512'),
    ('v4:0x4x4', "unknown --topology='v4:0x4x4'"),
    ('v4:4x4', r'torus of 3 sides.*got 4x4; e.g. v4:4x4x4'),
    ('v5e:16x32', r'at most 256 chips, got 16x32'),
    ('0xh100', "unknown --topology='0xh100'"),
    ('8xh999', "unknown GPU 'h999'; known: .*h100"),
    # They have the name of a known device in them.
    ('8xh1000', "unknown GPU 'h1000'"),
    ('8xtpu7x', "unknown GPU 'tpu7x'"),
    ('', "unknown --topology=''"),
  ],
)
def test_names_of_no_machine(name, says):
  with pytest.raises(ValueError, match=says):
    topology.parse_topology(name)


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
  assert topology.default_topology(ici, dcn) == name
  assert topology.parse_topology(name).num_devices == max(4, ici) * dcn


@pytest.mark.parametrize(
  ('ici', 'dcn', 'name'),
  [(16, 1, '16xa100'), (16, 8, '8x16xa100'), (8, 32, '32x8xh100'),
   (128, 1, '16x8xh100'), (1, 1, '1xh100')],
)  # fmt: skip
def test_a_mesh_of_gpus_has_hosts(ici, dcn, name):
  assert topology.default_topology(ici, dcn, platform='gpu') == name
  assert topology.parse_topology(name).num_devices == ici * dcn


@pytest.fixture
def cuda_plugin(monkeypatch):
  """Lets the CUDA compiler seem installed."""
  monkeypatch.setattr(topology, '_has_cuda_plugin', lambda: True)


def test_what_is_told_of_an_h100():
  lines = topology._gpu_target_config(chips.find('NVIDIA H100')).split('\n')
  fields = dict(
    line.strip().split(': ')
    for line in lines
    if '{' not in line and ':' in line
  )
  assert fields['platform_name'] == '"CUDA"'
  assert fields['device_description_str'] == '"NVIDIA H100"'
  # As `nvidia-smi` and CUDA's deviceQuery list the board.
  assert fields['major'] == '9' and fields['core_count'] == '132'
  assert fields['shared_memory_per_core'] == '233472'
  assert fields['shared_memory_per_block_optin'] == '232448'
  assert fields['l2_cache_size'] == '52428800'
  # As the table of chips has them.
  assert fields['device_memory_size'] == '80000000000'
  assert fields['memory_bandwidth'] == '3350000000000'


def test_braces_close():
  for kind in ('A100', 'H200', 'B200'):
    text = topology._gpu_target_config(chips.find(kind))
    assert text.count('{') == text.count('}') == 4


def test_code_for_one_gpu_alone_is_of_those_from_hopper_on():
  assert 'ACCELERATED' in topology._gpu_target_config(chips.find('H100'))
  assert 'ACCELERATED' not in topology._gpu_target_config(chips.find('A100'))


def test_where_the_compiler_is(cuda_plugin):
  assert topology.parse_topology('8xh100').missing_compiler() is None


def test_where_the_compiler_is_not(monkeypatch):
  monkeypatch.setattr(topology, '_has_cuda_plugin', lambda: False)
  reason = topology.parse_topology('8xh100').missing_compiler()
  assert '--config=cuda' in reason and 'jax[cuda13]==' in reason


def test_a_gpu_that_the_compiler_cannot_be_told():
  reason = topology.parse_topology('8xv100').missing_compiler()
  assert 'a100' in reason and 'compiling for v100 is not supported' in reason


def test_devices_are_asked_for_by_host(cuda_plugin, monkeypatch):
  asked = {}

  class Described:
    devices = ()

  def describe(**options):
    asked.update(options)
    return Described

  monkeypatch.setattr(topology.topologies, 'get_topology_desc', describe)
  topology.parse_topology('16x8xh100').devices()
  assert asked['topology'] == '1x16x8' and asked['platform'] == 'cuda'
