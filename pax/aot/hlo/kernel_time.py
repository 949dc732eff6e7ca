# SPDX-License-Identifier: Apache-2.0
"""Kernel time of a step from the cycle estimates of XLA's TPU compiler.

The compiler annotates each kernel with `estimated_cycles`, its cost model for
choosing tilings. The estimates hold at full compile effort only.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from pax.aot.hlo import bytes_accessed, collectives, hlo_parser
from pax.summaries import chips

_ESTIMATED_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# XLA writes INT64_MAX for a kernel that it has no estimate of.
_NO_ESTIMATE = 2**62
_MOSAIC_CALL = 'custom_call_target="tpu_custom_call"'
# Share of the peak that a Mosaic kernel is assumed to reach.
_MOSAIC_EFFICIENCY = 0.5


@dataclasses.dataclass(frozen=True)
class KernelSeconds:
  """Summed times of a step's kernels on one device."""

  # Kernels of XLA, by its cycle estimates.
  xla: float
  # Kernels of Mosaic (Pallas), which have no estimates.
  mosaic: float

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
    mosaic_flops: FLOPs of one call of each Mosaic kernel, by name.

  Returns:
    None if no kernel has an estimate or the clock is unknown.

  Raises:
    ValueError: a Mosaic kernel is not in `mosaic_flops`.
  """
  if not (chip.clock_hz and chip.hbm_bytes_per_s):
    return None
  xla, mosaic, has_estimate = 0.0, 0.0, False
  for execution in module.executions():
    instruction = execution.instruction
    if execution.is_fused or _is_collective_or_async(instruction.opcode):
      continue
    cycles = _estimated_cycles(instruction)
    if cycles is not None:
      has_estimate = True
      xla += execution.count * cycles / chip.clock_hz
      continue
    num_bytes = bytes_accessed.kernel_bytes(module, execution)
    seconds = num_bytes / chip.hbm_bytes_per_s
    if _MOSAIC_CALL in instruction.attributes:
      flops = _flops_of(instruction, mosaic_flops or {})
      seconds = max(seconds, flops / (_MOSAIC_EFFICIENCY * chip.flops))
      mosaic += execution.count * seconds
    else:
      xla += execution.count * seconds
  return KernelSeconds(xla, mosaic) if has_estimate else None


def _flops_of(
  kernel: hlo_parser.Instruction, mosaic_flops: Mapping[str, int]
) -> int:
  # The name stack ends in the name of the kernel and `pallas_call`.
  name = kernel.op_name.removesuffix('/pallas_call').rsplit('/', 1)[-1]
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
  return opcode in collectives.KINDS or opcode.endswith(('-start', '-done'))
