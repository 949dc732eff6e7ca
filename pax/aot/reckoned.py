# SPDX-License-Identifier: Apache-2.0
"""The time of a step as the TPU compiler reckons it, kernel by kernel.

It writes the cycles that it supposes beside each kernel, by which it chooses
how to cut the work; they are true only where it was let to choose.
"""

from __future__ import annotations

import re

from pax.aot import collectives, hlo, traffic
from pax.summaries import chips

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# The largest number stands where it supposes nothing.
_UNKNOWN = 2**62


def kernel_seconds(module: hlo.Module, chip: chips.Chip) -> float | None:
  """Returns the time of all kernels of a step, one after the other.

  What moves data beside them is left out, and so are collectives. A kernel
  whose cycles are not told takes as long as its bytes.

  Returns:
    Seconds; None where the compiler tells no cycles or nobody a clock.
  """
  if not (chip.clock_hz and chip.hbm_bytes_per_s):
    return None
  total, is_told = 0.0, False
  for visit in module.visits():
    if visit.is_fused or _runs_beside(visit.instruction.opcode):
      continue
    cycles = _cycles(visit.instruction)
    is_told = is_told or cycles is not None
    if cycles is None:
      moved = traffic.moved_bytes(module, visit)
      total += visit.times * moved / chip.hbm_bytes_per_s
    else:
      total += visit.times * cycles / chip.clock_hz
  return total if is_told else None


def _cycles(one: hlo.Instruction) -> int | None:
  found = _CYCLES.search(one.attributes)
  if found is None or int(found[1]) >= _UNKNOWN:
    return None
  return int(found[1])


def _runs_beside(opcode: str) -> bool:
  return opcode in collectives.KINDS or opcode.endswith(('-start', '-done'))
