# SPDX-License-Identifier: Apache-2.0
"""The least time that a step can take on a machine, and the MFU that gives.

A roofline (Williams et al., 2009): products run at the peak of the device,
memory and links at the bandwidths of their data sheets. Real steps are slower;
what it is good for is which of the four bounds a step, and by how much.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pax.aot import collectives as collectives_lib
from pax.summaries import chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
  """Seconds of one step on each device; None where a figure is missing."""

  # Products at the peak; reading and writing device memory.
  compute_s: float
  memory_s: float | None
  # Links of a slice, and between slices: all, and what nothing runs beside.
  ici_s: float | None
  dcn_s: float | None
  waiting_s: float | None
  # The step, where what may run at the same time does.
  step_s: float
  # Share of the peak that the model's own FLOPs are then.
  mfu: float
  # The step by the compiler's own account of its kernels, which also know what
  # a real shape costs, and the share then. None: it gives none.
  compiler_s: float | None = None
  compiler_mfu: float | None = None

  @property
  def bound(self) -> str:
    """What takes longest."""
    times = {
      'products': self.compute_s,
      'device memory': self.memory_s,
      'links within a slice': self.ici_s,
      'links between slices': self.dcn_s,
    }
    known = {name: t for name, t in times.items() if t is not None}
    return max(known, key=known.get)


def predict(
  chip: chips.Chip,
  *,
  model_flops: float,
  product_flops: float,
  memory_bytes: float | None,
  collectives: Iterable[collectives_lib.Collective] | None,
  kernel_s: float | None = None,
) -> Roofline:
  """Returns the roofline of a step.

  Args:
    chip: each device.
    model_flops: what the model needs, for each device.
    product_flops: what the step multiplies, recomputation too, for each device.
    memory_bytes: what a device moves from and to its memory; None: not known.
    collectives: of the compiled step; None: not known.
    kernel_s: its kernels by the compiler's account; None: not known.
  """
  compute = product_flops / chip.flops
  memory = ici = dcn = waiting = None
  if memory_bytes is not None and chip.hbm_bytes_per_s:
    memory = memory_bytes / chip.hbm_bytes_per_s
  if collectives is not None and chip.link_bytes_per_s:
    times = [(one, *_seconds(one, chip)) for one in collectives]
    ici = sum(on_ici for _, on_ici, _ in times)
    dcn = sum(on_dcn for _, _, on_dcn in times)
    waiting = sum(a + b for one, a, b in times if not one.is_async)
  links = max(ici or 0.0, dcn or 0.0)
  step = max(max(compute, memory or 0.0) + (waiting or 0.0), links)
  reckoned = None
  if kernel_s is not None:
    reckoned = max(kernel_s + (waiting or 0.0), links)
  needed = model_flops / chip.flops
  return Roofline(
    compute_s=compute,
    memory_s=memory,
    ici_s=ici,
    dcn_s=dcn,
    waiting_s=waiting,
    step_s=step,
    mfu=needed / step if step else 0.0,
    compiler_s=reckoned,
    compiler_mfu=needed / reckoned if reckoned else None,
  )


def _seconds(
  one: collectives_lib.Collective, chip: chips.Chip
) -> tuple[float, float]:
  """Seconds on links within a slice, and between slices, in a step."""
  links = 1
  if chip.torus_dims:
    # Along each dimension of the torus data goes both ways, if it closes.
    dims = min(one.torus_dims, chip.torus_dims)
    links = dims * (2 if one.is_ring else 1)
  ici = one.ici_bytes / (links * chip.link_bytes_per_s)
  dcn = one.dcn_bytes / chip.dcn_bytes_per_s if chip.dcn_bytes_per_s else 0.0
  return one.times * ici, one.times * dcn
