# SPDX-License-Identifier: Apache-2.0
"""Kernel time of a step from the cycle estimates of XLA's TPU compiler.

The compiler annotates each kernel with `estimated_cycles`, its cost model for
choosing tilings. The estimates hold at full compile effort only.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from pax.aot.hlo import async_collectives, bytes_accessed, hlo_parser
from pax.summaries import chips
from praxis.layers.moe import routed_rows

_ESTIMATED_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# XLA writes INT64_MAX for a kernel that it has no estimate of.
_NO_ESTIMATE = 2**62
_MOSAIC_CALL = 'custom_call_target="tpu_custom_call"'
_TRANSFORMATION = re.compile(r'\w+\(|\)')
_PALLAS_CALL = '/pallas_call'
# What a Pallas kernel declares, and XLA of those that it makes of `ragged_dot`.
_COST_ESTIMATE = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_CALLS = ('call', 'conditional', 'while')
# Share of the peak that a Mosaic kernel is assumed to reach.
_MOSAIC_EFFICIENCY = 0.5


@dataclasses.dataclass(frozen=True)
class KernelSeconds:
  """Summed times of a step's kernels on one device."""

  # Kernels of XLA, by its cycle estimates.
  xla: float
  # Kernels of Mosaic, by Pallas or by XLA, which have no estimates.
  mosaic: float
  # Kernels between start and end of one run of each asynchronous collective, by
  # the name of its start.
  overlapping: Mapping[str, float] = dataclasses.field(default_factory=dict)

  @property
  def total(self) -> float:
    return self.xla + self.mosaic


def kernel_seconds(
  module: hlo_parser.Module,
  chip: chips.Chip,
  mosaic_flops: Mapping[str, int] | None = None,
) -> KernelSeconds | None:
  """Returns the summed times of a step's kernels on one device.

  Asynchronous copies and collectives are left out. A kernel of XLA without an
  estimate takes the time of its HBM accesses. A Mosaic kernel takes the time of
  its FLOPs at half the peak, or of its HBM accesses if that is longer.

  Args:
    module: the compiled step.
    chip: the device.
    mosaic_flops: FLOPs of one call of each Pallas kernel, by name; '' is those
      without one.

  Returns:
    None if no kernel has an estimate or the clock is unknown.

  Raises:
    ValueError: a Pallas kernel is not in `mosaic_flops`.
  """
  if chip.clock_hz is None:
    return None
  schedule = _Schedule(module, chip, chip.clock_hz, mosaic_flops or {})
  schedule.run(module.computations[module.entry], 1)
  if not schedule.has_estimate:
    return None
  return KernelSeconds(schedule.xla, schedule.mosaic, schedule.overlapping)


class _Schedule:
  """Adds up the kernels of a program in scheduled order."""

  def __init__(
    self,
    module: hlo_parser.Module,
    chip: chips.Chip,
    clock_hz: float,
    mosaic_flops: Mapping[str, int],
  ):
    self._module = module
    self._chip, self._clock_hz = chip, clock_hz
    self._mosaic_flops = mosaic_flops
    self.xla, self.mosaic, self.has_estimate = 0.0, 0.0, False
    self.overlapping: dict[str, float] = {}

  def run(self, computation: hlo_parser.Computation, count: int) -> None:
    """Adds `count` runs of a computation."""
    # Name and start time of the collectives in flight, by what ends them.
    in_flight: dict[str, tuple[str, float]] = {}
    for instruction in computation.instructions.values():
      if collective := async_collectives.started(self._module, instruction):
        end = (
          async_collectives.identity(collective)
          if instruction.opcode == 'fusion'
          else instruction.name
        )
        in_flight[end] = collective.name, self.xla + self.mosaic
      elif ended := async_collectives.ended(self._module, instruction):
        if ended in in_flight:
          name, start = in_flight.pop(ended)
          seconds = self.xla + self.mosaic - start
          self.overlapping[name] = seconds / count
      elif instruction.opcode in _CALLS:
        trips = self._module.trip_count(instruction, computation) or 1
        for called in self._module.called(instruction):
          self.run(called, count * trips)
      elif not _is_collective_or_async(instruction.opcode):
        self._add_kernel(instruction, computation, count)

  def _add_kernel(
    self,
    instruction: hlo_parser.Instruction,
    computation: hlo_parser.Computation,
    count: int,
  ) -> None:
    share = float(routed_rows.share_of(instruction.op_name))
    if not share:
      return
    cycles = _estimated_cycles(instruction)
    if cycles is not None:
      self.has_estimate = True
      self.xla += count * cycles / self._clock_hz
      return
    num_bytes = bytes_accessed.kernel_bytes(
      self._module, instruction, computation
    )
    seconds = num_bytes / self._chip.hbm_bytes_per_s
    if _MOSAIC_CALL in instruction.attributes:
      flops = _flops_of(instruction, self._mosaic_flops) * share
      seconds = max(seconds, flops / (_MOSAIC_EFFICIENCY * self._chip.flops))
      self.mosaic += count * seconds
    else:
      self.xla += count * seconds


def _flops_of(
  kernel: hlo_parser.Instruction, mosaic_flops: Mapping[str, int]
) -> int:
  if estimate := _COST_ESTIMATE.search(kernel.attributes):
    return int(estimate[1])
  if not kernel.op_name.endswith(_PALLAS_CALL):
    return 0
  # The name stack ends in the name of the kernel, perhaps within that of a
  # transformation such as vmap(...), and `pallas_call`.
  scope = _TRANSFORMATION.sub('', kernel.op_name.removesuffix(_PALLAS_CALL))
  names = [n for n in mosaic_flops if n and f'/{scope}'.endswith(f'/{n}')]
  name = max(names, key=len, default='')
  if name not in mosaic_flops:
    raise ValueError(
      f'the kernel {kernel.op_name!r} must be one of {sorted(mosaic_flops)}'
    )
  return mosaic_flops[name]


def _estimated_cycles(instruction: hlo_parser.Instruction) -> int | None:
  match = _ESTIMATED_CYCLES.search(instruction.attributes)
  if match is None or int(match[1]) >= _NO_ESTIMATE:
    return None
  return int(match[1])


def _is_collective_or_async(opcode: str) -> bool:
  return opcode in async_collectives.KINDS or opcode.endswith(
    ('-start', '-done')
  )
