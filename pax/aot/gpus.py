# SPDX-License-Identifier: Apache-2.0
"""GPUs that need not be here: devices that XLA's CUDA compiler compiles for.

It wants no driver and no GPU, but JAX's CUDA plugin, and a description of the
GPU as XLA would make of a real one (`GpuTargetConfigProto`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence

import jax
from jax.experimental import topologies

from pax.aot import memory
from pax.summaries import chips

# Share of a GPU's memory that JAX takes, if nobody says anything else.
_PREALLOCATED = 0.75
# The newest first.
_PLUGINS = ('xla_cuda13', 'xla_cuda12')

# What is the same on all of them; from the CUDA programming guide.
_COMMON = """
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
# Older ones would keep the compiler from what the plugin comes with.
_LIBRARIES = """
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 8 }
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Silicon:
  """What the compiler chooses kernels by, besides memory and its bandwidth."""

  # CUDA compute capability; from 9 on code is made for it and no other.
  major: int
  # Streaming multiprocessors, and float32 units of each.
  cores: int
  fpus_per_core: int
  # Bytes: shared memory of a multiprocessor, what a block may ask of it, L2.
  shared_per_core: int
  shared_per_block: int
  l2: int
  clock_ghz: float


_A100 = _Silicon(
  major=8, cores=108, fpus_per_core=64, shared_per_core=164 * 1024,
  shared_per_block=163 * 1024, l2=40 * 2**20, clock_ghz=1.41,
)  # fmt: skip
_H100 = _Silicon(
  major=9, cores=132, fpus_per_core=128, shared_per_core=228 * 1024,
  shared_per_block=227 * 1024, l2=50 * 2**20, clock_ghz=1.98,
)  # fmt: skip
_B200 = _Silicon(
  major=10, cores=148, fpus_per_core=128, shared_per_core=228 * 1024,
  shared_per_block=227 * 1024, l2=132644864, clock_ghz=1.965,
)  # fmt: skip
# By the kind that `pax.summaries.chips` has; NVIDIA's tuning guides and the
# properties that CUDA tells of the boards.
_SILICON = {
  'A100': _A100,
  'A800': _A100,
  'H100': _H100,
  'H200': _H100,
  'H800': _H100,
  'B200': _B200,
}


def missing_compiler(chip: chips.Chip) -> str | None:
  """Why nothing can be compiled for such a GPU here, and how to; or None."""
  if chip.kind not in _SILICON:
    known = ', '.join(kind.lower() for kind in _SILICON)
    return (
      f'the CUDA compiler can be told here what {known} are, and not what'
      f' {chip.kind.lower()} is; what needs no compiler is told'
    )
  if not _has_plugin():
    return (
      'the CUDA compiler, which wants no GPU, is not installed: ./bazelw run'
      ' --config=cuda //pax:main fetches it, or pip install'
      f" 'jax[cuda13]=={jax.__version__}'"
    )
  return None


def devices(
  chip: chips.Chip, *, hosts: int, per_host: int
) -> Sequence[jax.Device]:
  """Returns devices that can be compiled for, and be nothing else.

  Each host is a process of its own.
  """
  return topologies.get_topology_desc(
    platform='cuda',
    target_config=describe(chip),
    topology=f'1x{hosts}x{per_host}',
  ).devices


def describe(chip: chips.Chip) -> str:
  """Returns a `GpuTargetConfigProto` of a GPU, as text."""
  one = _SILICON[chip.kind]
  extension = 'ACCELERATED_FEATURES' if one.major >= 9 else 'NONE'
  return f"""\
gpu_device_info {{{_COMMON}\
  cuda_compute_capability {{
    major: {one.major}
    feature_extension: {extension}
  }}
  core_count: {one.cores}
  fpus_per_core: {one.fpus_per_core}
  shared_memory_per_core: {one.shared_per_core}
  shared_memory_per_block_optin: {one.shared_per_block}
  l2_cache_size: {one.l2}
  clock_rate_ghz: {one.clock_ghz}
  memory_bandwidth: {chip.hbm_bytes_per_s:.0f}
  device_memory_size: {chip.hbm_bytes:.0f}
}}
platform_name: "CUDA"
device_description_str: "NVIDIA {chip.kind}"{_LIBRARIES}"""


def as_allocated(held: memory.Memory) -> memory.Memory:
  """Returns what a step takes where its block of temporaries is one piece.

  A GPU's runtime sets the block aside as it is, gaps and all.
  """
  return dataclasses.replace(
    held, temporaries=held.temporaries + held.gaps, gaps=0.0
  )


def warnings(held: memory.Memory) -> Iterator[str]:
  """A sentence where a run would not get the memory that there is."""
  share = held.total / held.capacity
  if _PREALLOCATED < share <= 1:
    yield (
      f'JAX sets {_PREALLOCATED:.0%} of a GPU aside and the step takes'
      f' {share:.0%}: run it with XLA_PYTHON_CLIENT_MEM_FRACTION=.95'
    )


def _has_plugin() -> bool:
  if not importlib.util.find_spec('jax_plugins'):
    return False
  return any(importlib.util.find_spec(f'jax_plugins.{p}') for p in _PLUGINS)
