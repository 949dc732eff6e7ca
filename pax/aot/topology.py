# SPDX-License-Identifier: Apache-2.0
"""Machines by name, and devices to compile for that need not be attached.

Names are v4-128, v5e-256, v4-128x2 (two slices), 8xh100, cpu:8. Compiling for
TPUs takes libtpu, for GPUs JAX's CUDA plugin; neither takes the device.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.experimental import topologies

from pax.summaries import chips

EXAMPLES = 'v4-128, v4-128x2, v5e-256, v5p-512, v6e-64, tpu7x-64, 8xh100, cpu:8'

_TPU = re.compile(
  r'(v2|v3|v4|v5e|v5litepod|v5p|v6e|tpu7x)-([1-9]\d*)(?:x([1-9]\d*))?'
)
_TPU_TORUS = re.compile(
  r'(v2|v3|v4|v5e|v5p|v6e|tpu7x):([1-9]\d*(?:x[1-9]\d*)+)(?:\*([1-9]\d*))?'
)
_GPU = re.compile(r'(?:([1-9]\d*)x)?([1-9]\d*)x([a-z]+\d+[a-z]*)')
_CPU = re.compile(r'cpu:([1-9]\d*)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
  """A machine: its devices, and the slices or hosts that they are in."""

  name: str
  # tpu, gpu or cpu.
  platform: str
  # `jax.Device.device_kind`.
  device_kind: str
  # Peak, memory and bandwidths; None for CPUs.
  chip: chips.Chip | None
  # Devices of a TPU slice or a GPU host, and the number of slices or hosts.
  devices_per_slice: int
  num_slices: int
  # Chips along each dimension of a TPU slice; () for other platforms.
  torus: tuple[int, ...] = ()

  @property
  def num_devices(self) -> int:
    return self.devices_per_slice * self.num_slices

  def missing_compiler(self) -> str | None:
    """Returns why no compiler for it is installed, with a fix; else None."""
    if self.platform == 'tpu' and not importlib.util.find_spec('libtpu'):
      return (
        'the TPU compiler is not installed; ./bazelw run --config=tpu'
        f" //pax:main fetches it, as does pip install 'jax[tpu]=="
        f"{jax.__version__}'"
      )
    if self.platform == 'gpu' and self.chip:
      return _missing_gpu_compiler(self.chip)
    return None

  def devices(self) -> Sequence[jax.Device]:
    """Returns devices that can be compiled for; for CPUs simulated ones.

    Raises:
      ValueError: the compiler is missing, or rejects the topology.
    """
    if self.chip is None:
      return jax.devices('cpu')[: self.num_devices]
    if reason := self.missing_compiler():
      raise ValueError(f'--topology={self.name}: {reason}')
    try:
      if self.platform == 'gpu':
        return _gpu_devices(self, self.chip)
      return _tpu_devices(self)
    except Exception as e:
      raise ValueError(
        f'--topology={self.name}: rejected by the compiler: {e}'
      ) from e


def parse_topology(name: str) -> Topology:
  """Returns the machine of a name.

  Google Cloud counts TensorCores for v2, v3, v4, v5p and tpu7x (v4-128 is 64
  chips) and chips for v5e and v6e. `v4:4x4x4` is the torus, in chips.

  Raises:
    ValueError: the name is unknown, or TPUs have no slice of that size.
  """
  if match := _TPU.fullmatch(name):
    version, count, slices = match.groups()
    version = 'v5e' if version == 'v5litepod' else version
    generation = _GENERATIONS[version]
    num_chips, remainder = divmod(int(count), generation.name_units_per_chip)
    torus = None
    if not remainder and num_chips <= generation.max_chips:
      torus = _torus(num_chips, generation.torus_dims)
    if torus is None:
      raise ValueError(
        f'--topology={name}: {version} has no slice of {count}; known:'
        f' {EXAMPLES}, or a torus as in {version}:'
        + 'x'.join(['4'] * generation.torus_dims)
      )
    return _tpu_topology(name, version, torus, int(slices or 1))
  if match := _TPU_TORUS.fullmatch(name):
    version, sides, slices = match.groups()
    torus = tuple(map(int, sides.split('x')))
    generation = _GENERATIONS[version]
    if (
      len(torus) != generation.torus_dims
      or math.prod(torus) > generation.max_chips
    ):
      raise ValueError(
        f'--topology={name}: a slice of {version} is a torus of'
        f' {generation.torus_dims} sides and at most {generation.max_chips}'
        f' chips, got {sides}; e.g. {version}:'
        + 'x'.join(['4'] * generation.torus_dims)
      )
    return _tpu_topology(name, version, torus, int(slices or 1))
  if match := _GPU.fullmatch(name):
    hosts, per_host, kind = match.groups()
    return _gpu_topology(name, int(hosts or 1), int(per_host), kind)
  if match := _CPU.fullmatch(name):
    return Topology(
      name=name,
      platform='cpu',
      device_kind='cpu',
      chip=None,
      devices_per_slice=int(match[1]),
      num_slices=1,
    )
  raise ValueError(f'unknown --topology={name!r}; known: {EXAMPLES}')


def default_topology(ici: int, dcn: int, *, platform: str = 'tpu') -> str:
  """Returns the name of the machine for a mesh of `dcn` x `ici` devices.

  For TPUs it is a v4, whose smallest slice has four chips. For GPUs it is hosts
  of 16 A100 if a slice of the mesh has 16 devices, else hosts of 8 H100.
  """
  if platform == 'cpu':
    return f'cpu:{ici * dcn}'
  if platform == 'gpu':
    kind, per_host = ('a100', 16) if ici == 16 else ('h100', min(8, ici))
    hosts = max(1, ici * dcn // per_host)
    return f'{per_host}x{kind}' if hosts == 1 else f'{hosts}x{per_host}x{kind}'
  cores = 2 * max(ici, _CHIPS_PER_HOST)
  return f'v4-{cores}' + (f'x{dcn}' if dcn > 1 else '')


# TPUs.

_CHIPS_PER_HOST = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Generation:
  """A TPU version."""

  # `jax.Device.device_kind`.
  device_kind: str
  # How much a chip counts in the number of a slice's name.
  name_units_per_chip: int
  # JAX devices per chip.
  devices_per_chip: int
  torus_dims: int
  # Of a pod, the largest slice.
  max_chips: int


_GENERATIONS = {
  'v2': _Generation(
    device_kind='TPU v2', name_units_per_chip=2, devices_per_chip=2,
    torus_dims=2, max_chips=256,
  ),
  'v3': _Generation(
    device_kind='TPU v3', name_units_per_chip=2, devices_per_chip=2,
    torus_dims=2, max_chips=1024,
  ),
  'v4': _Generation(
    device_kind='TPU v4', name_units_per_chip=2, devices_per_chip=1,
    torus_dims=3, max_chips=4096,
  ),
  'v5e': _Generation(
    device_kind='TPU v5 lite', name_units_per_chip=1, devices_per_chip=1,
    torus_dims=2, max_chips=256,
  ),
  'v5p': _Generation(
    device_kind='TPU v5', name_units_per_chip=2, devices_per_chip=1,
    torus_dims=3, max_chips=8960,
  ),
  'v6e': _Generation(
    device_kind='TPU v6 lite', name_units_per_chip=1, devices_per_chip=1,
    torus_dims=2, max_chips=256,
  ),
  'tpu7x': _Generation(
    device_kind='TPU7x', name_units_per_chip=2, devices_per_chip=2,
    torus_dims=3, max_chips=9216,
  ),
}  # fmt: skip


def _tpu_topology(
  name: str, version: str, torus: tuple[int, ...], num_slices: int
) -> Topology:
  generation = _GENERATIONS[version]
  return Topology(
    name=name,
    platform='tpu',
    device_kind=generation.device_kind,
    chip=chips.find(generation.device_kind),
    devices_per_slice=math.prod(torus) * generation.devices_per_chip,
    num_slices=num_slices,
    torus=torus,
  )


def _torus(num_chips: int, dims: int) -> tuple[int, ...] | None:
  """Returns the sides of a slice, as equal as possible; None if none exist.

  Slices within a host are flat. Larger ones have even sides, from 64 chips on
  3D tori have sides that are multiples of 4.
  """
  if num_chips < _CHIPS_PER_HOST:
    flat = {1: (1, 1), 2: (1, 2)}.get(num_chips)
    return flat if dims == 2 else None
  if num_chips == _CHIPS_PER_HOST:
    return (2, 2, 1)[:dims]
  multiple = 4 if dims == 3 and num_chips >= 64 else 2
  divisors = [
    d for d in range(multiple, num_chips + 1, multiple) if num_chips % d == 0
  ]
  tori = [
    sides
    for sides in itertools.combinations_with_replacement(divisors, dims)
    if math.prod(sides) == num_chips
  ]
  return min(tori, key=lambda sides: sides[-1] - sides[0], default=None)


def _tpu_devices(topology: Topology) -> Sequence[jax.Device]:
  _configure_libtpu(topology.name)
  return topologies.get_topology_desc(
    platform='tpu', **_libtpu_options(topology)
  ).devices


def _libtpu_options(topology: Topology) -> Mapping[str, Any]:
  version = topology.name.partition('-')[0].partition(':')[0]
  version = 'v5e' if version == 'v5litepod' else version
  generation = _GENERATIONS[version]
  options: dict[str, Any] = {
    'topology_name': f'{version}:{"x".join(map(str, topology.torus))}'
  }
  # Two cores that are one device.
  if generation.name_units_per_chip == 2 and generation.devices_per_chip == 1:
    options['chip_config_name'] = 'megacore'
  if topology.num_slices > 1:
    options['num_slices'] = topology.num_slices
  if math.prod(topology.torus) < _CHIPS_PER_HOST:
    options['chips_per_host_bounds'] = [*topology.torus, 1][:3]
  return options


def _configure_libtpu(name: str) -> None:
  """Keeps libtpu from looking for TPUs and a metadata server, and from logs."""
  for key, value in {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_ACCELERATOR_TYPE': name.partition('x')[0],
    'TPU_MIN_LOG_LEVEL': '3',
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_STDERR_LOG_LEVEL': '3',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_WORKER_ID': '0',
  }.items():
    os.environ.setdefault(key, value)


# GPUs. XLA compiles for a GPU by its `GpuTargetConfigProto`, with JAX's CUDA
# plugin but without a driver or a GPU.

# The newest first.
_CUDA_PLUGINS = ('xla_cuda13', 'xla_cuda12')

# Limits that all these GPUs share (CUDA programming guide).
_COMMON_LIMITS = """
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
"""
# With older versions XLA avoids features of the libraries that the plugin has.
_LIBRARY_VERSIONS = """
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 8 }
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GpuSpec:
  """Properties of a GPU that XLA's code generation and cost model use."""

  # CUDA compute capability; 9 and later have architecture-specific features.
  major: int
  # Streaming multiprocessors, and float32 units of each.
  cores: int
  fpus_per_core: int
  # Bytes of shared memory per multiprocessor and per block, and of L2.
  shared_per_core: int
  shared_per_block: int
  l2: int
  clock_ghz: float


_A100 = _GpuSpec(
  major=8, cores=108, fpus_per_core=64, shared_per_core=164 * 1024,
  shared_per_block=163 * 1024, l2=40 * 2**20, clock_ghz=1.41,
)  # fmt: skip
_H100 = _GpuSpec(
  major=9, cores=132, fpus_per_core=128, shared_per_core=228 * 1024,
  shared_per_block=227 * 1024, l2=50 * 2**20, clock_ghz=1.98,
)  # fmt: skip
_B200 = _GpuSpec(
  major=10, cores=148, fpus_per_core=128, shared_per_core=228 * 1024,
  shared_per_block=227 * 1024, l2=132644864, clock_ghz=1.965,
)  # fmt: skip
# By `chips.Chip.kind`; from NVIDIA's tuning guides and CUDA device properties.
_GPU_SPECS = {
  'A100': _A100,
  'A800': _A100,
  'H100': _H100,
  'H200': _H100,
  'H800': _H100,
  'B200': _B200,
}


def _gpu_topology(
  name: str, num_hosts: int, per_host: int, kind: str
) -> Topology:
  # In lower case and without spaces: h100pcie.
  known = {
    ''.join(chip.kind.lower().split()): chip
    for chip in chips.CHIPS
    if 'TPU' not in chip.kind
  }
  chip = known.get(kind)
  if chip is None:
    raise ValueError(
      f'--topology={name}: unknown GPU {kind!r}; known: {", ".join(known)}'
    )
  return Topology(
    name=name,
    platform='gpu',
    device_kind=f'NVIDIA {chip.kind}',
    chip=chip,
    devices_per_slice=per_host,
    num_slices=num_hosts,
  )


def _missing_gpu_compiler(chip: chips.Chip) -> str | None:
  if chip.kind not in _GPU_SPECS:
    known = ', '.join(kind.lower() for kind in _GPU_SPECS)
    return (
      f'compiling for {chip.kind.lower()} is not supported, only for {known};'
      ' the report has what needs no compiler'
    )
  if not _has_cuda_plugin():
    return (
      'the CUDA compiler is not installed (it needs no GPU); ./bazelw run'
      ' --config=cuda //pax:main fetches it, as does pip install'
      f" 'jax[cuda13]=={jax.__version__}'"
    )
  return None


def _has_cuda_plugin() -> bool:
  if not importlib.util.find_spec('jax_plugins'):
    return False
  return any(
    importlib.util.find_spec(f'jax_plugins.{name}') for name in _CUDA_PLUGINS
  )


def _gpu_devices(topology: Topology, chip: chips.Chip) -> Sequence[jax.Device]:
  """Each host is a process."""
  return topologies.get_topology_desc(
    platform='cuda',
    target_config=_gpu_target_config(chip),
    topology=f'1x{topology.num_slices}x{topology.devices_per_slice}',
  ).devices


def _gpu_target_config(chip: chips.Chip) -> str:
  """Returns the `GpuTargetConfigProto` of a GPU, as text."""
  spec = _GPU_SPECS[chip.kind]
  extension = 'ACCELERATED_FEATURES' if spec.major >= 9 else 'NONE'
  return f"""\
gpu_device_info {{{_COMMON_LIMITS}\
  cuda_compute_capability {{
    major: {spec.major}
    feature_extension: {extension}
  }}
  core_count: {spec.cores}
  fpus_per_core: {spec.fpus_per_core}
  shared_memory_per_core: {spec.shared_per_core}
  shared_memory_per_block_optin: {spec.shared_per_block}
  l2_cache_size: {spec.l2}
  clock_rate_ghz: {spec.clock_ghz}
  memory_bandwidth: {chip.hbm_bytes_per_s:.0f}
  device_memory_size: {chip.hbm_bytes:.0f}
}}
platform_name: "CUDA"
device_description_str: "NVIDIA {chip.kind}"{_LIBRARY_VERSIONS}"""
