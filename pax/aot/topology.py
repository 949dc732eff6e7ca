# SPDX-License-Identifier: Apache-2.0
"""Machines by name: v4-128, v5e-256, v4-128x2 (two slices), 8xh100, cpu:8."""

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

from pax.aot import gpus
from pax.summaries import chips

EXAMPLES = 'v4-128, v4-128x2, v5e-256, v5p-512, v6e-64, tpu7x-64, 8xh100, cpu:8'

_TPU = re.compile(r'(v2|v3|v4|v5e|v5litepod|v5p|v6e|tpu7x)-(\d+)(?:x(\d+))?')
_TPU_SHAPE = re.compile(
  r'(v2|v3|v4|v5e|v5p|v6e|tpu7x):(\d+(?:x\d+)+)(?:\*(\d+))?'
)
_GPU = re.compile(r'(?:(\d+)x)?(\d+)x([a-z]+\d+[a-z]*)')
_CPU = re.compile(r'cpu:(\d+)')

# A host's chips; smaller slices are one host's part.
_CHIPS_PER_HOST = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Generation:
  """How a TPU version counts, and what its devices are."""

  # As JAX names its devices.
  kind: str
  # What the number in a name counts, for each chip.
  counted_per_chip: int
  # JAX devices of a chip.
  devices_per_chip: int
  # Dimensions of the torus.
  dims: int


_GENERATIONS = {
  'v2': _Generation(
    kind='TPU v2', counted_per_chip=2, devices_per_chip=2, dims=2
  ),
  'v3': _Generation(
    kind='TPU v3', counted_per_chip=2, devices_per_chip=2, dims=2
  ),
  'v4': _Generation(
    kind='TPU v4', counted_per_chip=2, devices_per_chip=1, dims=3
  ),
  'v5e': _Generation(
    kind='TPU v5 lite', counted_per_chip=1, devices_per_chip=1, dims=2
  ),
  'v5p': _Generation(
    kind='TPU v5', counted_per_chip=2, devices_per_chip=1, dims=3
  ),
  'v6e': _Generation(
    kind='TPU v6 lite', counted_per_chip=1, devices_per_chip=1, dims=2
  ),
  'tpu7x': _Generation(
    kind='TPU7x', counted_per_chip=2, devices_per_chip=2, dims=3
  ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
  """A machine that need not be at hand."""

  name: str
  # tpu, gpu or cpu.
  platform: str
  # As JAX calls the devices.
  device_kind: str
  # What a device can do; None for CPUs, which have no such figures.
  chip: chips.Chip | None
  # Devices of a slice, or of a host of GPUs, and how many of those there are.
  devices_per_slice: int
  num_slices: int
  # Chips along each dimension of a slice; () for what is no torus.
  shape: tuple[int, ...] = ()

  @property
  def num_devices(self) -> int:
    """All devices."""
    return self.devices_per_slice * self.num_slices

  def missing_compiler(self) -> str | None:
    """Why nothing can be compiled for it here, and how it could be; or None."""
    if self.platform == 'tpu' and not importlib.util.find_spec('libtpu'):
      return (
        'the TPU compiler is not installed: ./bazelw run --config=tpu'
        f" //pax:main fetches it, or pip install 'jax[tpu]=={jax.__version__}'"
      )
    return gpus.missing_compiler(self.chip) if self.platform == 'gpu' else None

  def devices(self) -> Sequence[jax.Device]:
    """Returns devices that can be compiled for, and be nothing else.

    For CPUs they are real, those that JAX has been told to simulate.

    Raises:
      ValueError: the compiler is missing, or knows no such machine.
    """
    if self.platform == 'cpu':
      return jax.devices('cpu')[: self.num_devices]
    if reason := self.missing_compiler():
      raise ValueError(f'{self.name}: {reason}')
    try:
      if self.platform == 'gpu':
        return gpus.devices(
          self.chip, hosts=self.num_slices, per_host=self.devices_per_slice
        )
      _quiet_libtpu(self.name)
      return topologies.get_topology_desc(
        platform='tpu', **self._description()
      ).devices
    except Exception as e:
      raise ValueError(
        f'--topology={self.name}: the compiler does not know it: {e}'
      ) from e

  def _description(self) -> Mapping[str, Any]:
    version = self.name.partition('-')[0].partition(':')[0]
    version = 'v5e' if version == 'v5litepod' else version
    found: dict[str, Any] = {
      'topology_name': f'{version}:{"x".join(map(str, self.shape))}'
    }
    if _GENERATIONS[version].counted_per_chip == 2 and (
      _GENERATIONS[version].devices_per_chip == 1
    ):
      found['chip_config_name'] = 'megacore'
    if self.num_slices > 1:
      found['num_slices'] = self.num_slices
    if math.prod(self.shape) < _CHIPS_PER_HOST:
      found['chips_per_host_bounds'] = [*self.shape, 1][:3]
    return found


def parse(name: str) -> Topology:
  """Returns the machine called `name`.

  `v4-128` counts as Google Cloud does: TensorCores for v2, v3, v4, v5p and
  tpu7x, chips for v5e and v6e. `v4:4x4x4` says the torus itself.

  Raises:
    ValueError: there is no such machine.
  """
  if found := _TPU.fullmatch(name):
    version, count, slices = found.groups()
    version = 'v5e' if version == 'v5litepod' else version
    counted = _GENERATIONS[version].counted_per_chip
    shape = _torus(int(count) // counted, _GENERATIONS[version].dims)
    if int(count) % counted or shape is None:
      raise ValueError(
        f'--topology={name}: {version} comes in no slice of {count}; e.g.'
        f' {EXAMPLES}, or the torus itself as in {version}:'
        + 'x'.join(['4'] * _GENERATIONS[version].dims)
      )
    return _tpu(name, version, shape, int(slices or 1))
  if found := _TPU_SHAPE.fullmatch(name):
    version, sides, slices = found.groups()
    shape = tuple(map(int, sides.split('x')))
    return _tpu(name, version, shape, int(slices or 1))
  if found := _GPU.fullmatch(name):
    return _gpu(name, *found.groups())
  if found := _CPU.fullmatch(name):
    return Topology(
      name=name,
      platform='cpu',
      device_kind='cpu',
      chip=None,
      devices_per_slice=int(found[1]),
      num_slices=1,
    )
  raise ValueError(f'--topology={name} is none; as in {EXAMPLES}')


def natural(ici: int, dcn: int, *, gpus: bool = False) -> str:
  """Returns the name of the machine that a mesh of `dcn` x `ici` is made for.

  That is a TPU v4, whose smallest slice has four chips: a smaller mesh takes
  some of them. With `gpus` it is hosts of 16 A100 where a slice has 16, else
  of 8 H100.
  """
  if gpus:
    kind, host = ('a100', 16) if ici == 16 else ('h100', min(8, ici))
    hosts = max(1, ici * dcn // host)
    return f'{host}x{kind}' if hosts == 1 else f'{hosts}x{host}x{kind}'
  cores = 2 * max(ici, _CHIPS_PER_HOST)
  return f'v4-{cores}' + (f'x{dcn}' if dcn > 1 else '')


def _tpu(
  name: str, version: str, shape: tuple[int, ...], slices: int
) -> Topology:
  generation = _GENERATIONS[version]
  return Topology(
    name=name,
    platform='tpu',
    device_kind=generation.kind,
    chip=chips.find(generation.kind),
    devices_per_slice=math.prod(shape) * generation.devices_per_chip,
    num_slices=slices,
    shape=shape,
  )


def _gpu(name: str, hosts: str | None, per_host: str, kind: str) -> Topology:
  chip = chips.find(kind)
  if chip is None:
    known = ', '.join(
      c.kind.lower() for c in chips.CHIPS if 'TPU' not in c.kind
    )
    raise ValueError(f'--topology={name}: no figures of {kind}; of {known}')
  return Topology(
    name=name,
    platform='gpu',
    device_kind=f'NVIDIA {chip.kind}',
    chip=chip,
    devices_per_slice=int(per_host),
    num_slices=int(hosts or 1),
  )


def _torus(num_chips: int, dims: int) -> tuple[int, ...] | None:
  """Returns the sides of a slice, the most even that there is, or None.

  Up to a host's chips a slice is flat; larger ones have even sides, and from
  64 chips on those of a 3D torus are multiples of 4.
  """
  if num_chips < _CHIPS_PER_HOST:
    flat = {1: (1, 1), 2: (1, 2)}.get(num_chips)
    return flat if dims == 2 else None
  if num_chips == _CHIPS_PER_HOST:
    return (2, 2, 1)[:dims]
  step = 4 if dims == 3 and num_chips >= 64 else 2
  divisors = [d for d in range(step, num_chips + 1, step) if num_chips % d == 0]
  found = [
    sides
    for sides in itertools.combinations_with_replacement(divisors, dims)
    if math.prod(sides) == num_chips
  ]
  return min(found, key=lambda sides: sides[-1] - sides[0], default=None)


def _quiet_libtpu(name: str) -> None:
  """Tells libtpu that there is no machine, and to keep that to itself."""
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
