# SPDX-License-Identifier: Apache-2.0
"""Checks before allocation whether the train state fits into memory."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import pathlib
from collections.abc import Sequence

import jax

from pax import host_memory
from pax.train_states import TrainState
from praxis.pytypes import Nested

_GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryReport:
  """Device memory, for the device with the least free memory."""

  state_bytes_per_device: int
  # None where the device does not report it.
  free_bytes_per_device: int | None


def state_bytes_per_device(
  state_metadata: TrainState[jax.ShapeDtypeStruct]
  | Nested[jax.ShapeDtypeStruct],
) -> int:
  """Returns the bytes of the shards on one device, without offloaded arrays."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(state_metadata)
    if not host_memory.is_offloaded(leaf.sharding)
  )


def check(
  state_metadata: TrainState[jax.ShapeDtypeStruct]
  | Nested[jax.ShapeDtypeStruct],
  devices: Sequence[jax.Device],
) -> MemoryReport:
  """Returns the memory that the state needs and the free memory.

  Raises:
    ValueError: The state needs more than is free.
  """
  report = MemoryReport(
    state_bytes_per_device=state_bytes_per_device(state_metadata),
    free_bytes_per_device=_free_bytes(devices),
  )
  needs, free = report.state_bytes_per_device, report.free_bytes_per_device
  if free is not None and needs > free:
    raise ValueError(
      f'the train state needs {needs / _GIB:.2f} GiB per device and '
      f'{free / _GIB:.2f} GiB are free on {devices[0].platform} '
      f'(mesh of {len(devices)} devices); shard it over more devices with '
      '--set ICI_MESH_SHAPE=..., or make the model smaller with '
      '--set NUM_LAYERS=... --set MODEL_DIMS=...'
    )
  return report


def trim_heap() -> None:
  """Returns freed heap memory to the operating system (glibc malloc_trim).

  A compilation leaves hundreds of MiB of freed memory in the heap, which the
  arrays of a step, allocated by mmap, cannot reuse.
  """
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
  if trim is not None:
    trim(0)


def _free_bytes(devices: Sequence[jax.Device]) -> int | None:
  """Returns the least free bytes over the devices of this process."""
  local = [d for d in devices if d.process_index == jax.process_index()]
  if not local:
    return None
  if local[0].platform == 'cpu':
    ram = _free_ram()
    return None if ram is None else ram // len(local)
  free = [_free_on(device) for device in local]
  known = [bytes_ for bytes_ in free if bytes_ is not None]
  return min(known) if known else None


def _free_on(device: jax.Device) -> int | None:
  stats = device.memory_stats() or {}
  if 'bytes_limit' not in stats:
    return None
  return stats['bytes_limit'] - stats.get('bytes_in_use', 0)


def _free_ram() -> int | None:
  """Returns the available RAM within the cgroup limit."""
  meminfo = pathlib.Path('/proc/meminfo')
  if not meminfo.exists():
    return None
  free = None
  for line in meminfo.read_text().splitlines():
    if line.startswith('MemAvailable:'):
      free = int(line.split()[1]) * 1024
  limit = _read_int('/sys/fs/cgroup/memory.max')
  used = _read_int('/sys/fs/cgroup/memory.current')
  if free is not None and limit is not None and used is not None:
    free = min(free, max(limit - used, 0))
  return free


def _read_int(path: str) -> int | None:
  file = pathlib.Path(path)
  text = file.read_text().strip() if file.exists() else ''
  return int(text) if text.isdigit() else None
