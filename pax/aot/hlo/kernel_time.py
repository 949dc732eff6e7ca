# SPDX-License-Identifier: Apache-2.0
"""Kernel time of a step from the cycle estimates of XLA's TPU compiler.

The compiler annotates each kernel with `estimated_cycles`, its cost model for
choosing tilings. The estimates hold at full compile effort only.
"""

from __future__ import annotations

import re

from pax.aot.hlo import bytes_accessed, collectives, hlo_parser
from pax.summaries import chips

_ESTIMATED_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# XLA writes INT64_MAX for a kernel that it has no estimate of.
_NO_ESTIMATE = 2**62


def kernel_seconds(module: hlo_parser.Module, chip: chips.Chip) -> float | None:
  """Returns the summed time of a step's kernels on one device.

  Asynchronous copies and collectives are left out. A kernel without an
  estimate takes the time of its HBM accesses.

  Returns:
    Seconds; None if no kernel has an estimate or the clock is unknown.
  """
  if not (chip.clock_hz and chip.hbm_bytes_per_s):
    return None
  total, has_estimate = 0.0, False
  for execution in module.executions():
    if execution.is_fused or _is_collective_or_async(
      execution.instruction.opcode
    ):
      continue
    cycles = _estimated_cycles(execution.instruction)
    if cycles is None:
      num_bytes = bytes_accessed.kernel_bytes(module, execution)
      total += execution.count * num_bytes / chip.hbm_bytes_per_s
    else:
      has_estimate = True
      total += execution.count * cycles / chip.clock_hz
  return total if has_estimate else None


def _estimated_cycles(instruction: hlo_parser.Instruction) -> int | None:
  match = _ESTIMATED_CYCLES.search(instruction.attributes)
  if match is None or int(match[1]) >= _NO_ESTIMATE:
    return None
  return int(match[1])


def _is_collective_or_async(opcode: str) -> bool:
  return opcode in collectives.KINDS or opcode.endswith(('-start', '-done'))
