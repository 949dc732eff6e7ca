# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time compilation of a train step, and XLA's out-of-memory errors."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from typing import cast

import jax

from pax import partitioning
from pax.aot.hlo import hlo_parser
from pax.aot.report import memory

# XLA's effort from O0, the least, to O3; the default is UNKNOWN.
_EFFORT_FLAG = 'jax_optimization_level'
_LEAST_EFFORT = 'O0'

_UNIT_BYTES = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
_USED = re.compile(r'Used ([\d.]+)([KMGT]?)B? of ([\d.]+)([KMGT]?)B? hbm')
# The figure for temporaries in this message includes the arguments.
_TEMPORARIES = re.compile(
  r'HLO temporaries \(([\d.]+)([KMGT]?)B?\) exceeds available HBM '
  r'\(([\d.]+)([KMGT]?)B?\)'
)
# An entry, of several lines, in XLA's list of the largest allocations.
_ALLOCATION = re.compile(
  r'\n\s*\d+\. Size: ([\d.]+)([KMGT]?)B?\n(.*?)(?=\n\s*={3,}|\n\s*\n|\Z)', re.S
)
_ALLOCATION_FIELDS = {
  'shape': re.compile(r'Shape: (\S+)'),
  'op_name': re.compile(r'op_name="([^"]*)"'),
  'allocation_type': re.compile(r'Allocation type: (.+)'),
}


class DoesNotFitError(ValueError):
  """XLA cannot fit the step into the memory of a device.

  Attributes:
    required_bytes: of state, batch and temporaries; None: not in the message.
    capacity: usable bytes of the device; None: not in the message.
    buffers: the largest allocations, if the message lists them.
  """

  def __init__(self, message: str):
    super().__init__(message)
    self.required_bytes, self.capacity = None, None
    if match := _USED.search(message) or _TEMPORARIES.search(message):
      required, required_unit, capacity, capacity_unit = match.groups()
      self.required_bytes = float(required) * _UNIT_BYTES[required_unit]
      self.capacity = float(capacity) * _UNIT_BYTES[capacity_unit]
    self.buffers = list(_parse_allocations(message))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledStep:
  """A compiled train step with XLA's analyses of it."""

  executable: jax.stages.Compiled
  module: hlo_parser.Module
  memory_analysis: memory.MemoryAnalysis
  cost_analysis: dict[str, float]
  # Compile time.
  seconds: float


def compile_step(
  step: partitioning.PartitionedStep, *, full_effort: bool
) -> CompiledStep:
  """Compiles a step for the devices of its mesh.

  Args:
    step: the step; compiled with full effort it keeps its executable.
    full_effort: compiles as for a run. Otherwise XLA takes a quarter of the
      time, and its allocations differ by some percent.

  Raises:
    DoesNotFitError: the step exceeds the memory of a device.
    ValueError: XLA does not take a compiler option.
  """
  start = time.monotonic()
  try:
    if full_effort:
      executable = step.compiled
    else:
      with _least_effort():
        executable = step.compile_anew()
  except jax.errors.JaxRuntimeError as e:
    if 'RESOURCE_EXHAUSTED' not in str(e):
      raise
    raise DoesNotFitError(str(e)) from e
  # Both are None on backends without them; TPUs, GPUs and CPUs have them.
  text = cast(str, executable.as_text())
  memory_analysis = cast(memory.MemoryAnalysis, executable.memory_analysis())
  return CompiledStep(
    executable=executable,
    module=hlo_parser.parse(text),
    memory_analysis=memory_analysis,
    cost_analysis=dict(executable.cost_analysis() or {}),
    seconds=time.monotonic() - start,
  )


@contextlib.contextmanager
def _least_effort() -> Iterator[None]:
  previous = getattr(jax.config, _EFFORT_FLAG)
  jax.config.update(_EFFORT_FLAG, _LEAST_EFFORT)
  try:
    yield
  finally:
    jax.config.update(_EFFORT_FLAG, previous)


def _parse_allocations(message: str) -> Iterator[memory.Buffer]:
  for size, unit, details in _ALLOCATION.findall(message):
    matches = {
      name: pattern.search(details)
      for name, pattern in _ALLOCATION_FIELDS.items()
    }
    yield memory.Buffer(
      num_bytes=float(size) * _UNIT_BYTES[unit],
      **{name: match[1] if match else '' for name, match in matches.items()},
    )
