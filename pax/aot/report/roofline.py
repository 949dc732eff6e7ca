# SPDX-License-Identifier: Apache-2.0
"""Roofline bound on the step time (Williams et al., 2009), and its MFU.

Matmuls run at the device's peak, HBM and links at their data-sheet bandwidths.
Real steps are slower; the bound shows which resource limits a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pax.aot.hlo import collectives as collectives_lib
from pax.aot.hlo import kernel_time
from pax.summaries import chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
  """Seconds of a step on each device; None where a figure is unknown."""

  # Matmuls at the peak; HBM accesses.
  compute_s: float
  memory_s: float | None
  # Links within a slice, and between slices.
  ici_s: float | None
  dcn_s: float | None
  # Collectives that nothing overlaps with, over ICI and DCN. With XLA's cycle
  # estimates also the parts of asynchronous ones that outlast their kernels.
  waiting_s: float | None
  # The step, with everything overlapped that can be.
  step_s: float
  # MFU of such a step.
  mfu: float
  # Step time and MFU from XLA's cycle estimates; None: it has none.
  compiler_s: float | None = None
  # The part of Mosaic kernels, which have no estimates; see kernel_time.py.
  mosaic_s: float | None = None
  compiler_mfu: float | None = None

  @property
  def bound(self) -> str:
    """The resource that takes longest."""
    times = {
      'matmuls': self.compute_s,
      'HBM': self.memory_s,
      'links within a slice': self.ici_s,
      'links between slices': self.dcn_s,
    }
    known = {name: t for name, t in times.items() if t is not None}
    return max(known, key=known.__getitem__)


def compute_roofline(
  chip: chips.Chip,
  *,
  model_flops: float,
  matmul_flops: float,
  memory_bytes: float | None,
  collectives: Iterable[collectives_lib.Collective] | None,
  kernels: kernel_time.KernelSeconds | None = None,
) -> Roofline:
  """Returns the roofline of a step. All quantities are per device.

  Args:
    chip: the device.
    model_flops: FLOPs that the model needs, without recomputation.
    matmul_flops: FLOPs of the step's matmuls, with recomputation.
    memory_bytes: bytes accessed in HBM; None: unknown.
    collectives: of the compiled step; None: unknown.
    kernels: kernel time from XLA's cycle estimates; None: unknown.
  """
  compute_s = matmul_flops / chip.flops
  memory_s = ici_s = dcn_s = waiting_s = None
  if memory_bytes is not None:
    memory_s = memory_bytes / chip.hbm_bytes_per_s
  if collectives is not None and chip.link_bytes_per_s:
    times = [
      (c, _ici_seconds(c, chip, chip.link_bytes_per_s), _dcn_seconds(c, chip))
      for c in collectives
    ]
    ici_s = sum(ici for _, ici, _ in times)
    dcn_s = sum(dcn for _, _, dcn in times)
    waiting_s = sum(ici + dcn for c, ici, dcn in times if not c.is_async)
  links_s = max(ici_s or 0.0, dcn_s or 0.0)
  step_s = max(max(compute_s, memory_s or 0.0) + (waiting_s or 0.0), links_s)
  compiler_s = None
  if kernels is not None:
    compiler_s = kernels.total
    if waiting_s is not None:
      waiting_s += sum(
        _exposed_seconds(c, ici + dcn, kernels) for c, ici, dcn in times
      )
      compiler_s = max(compiler_s + waiting_s, links_s)
  model_s = model_flops / chip.flops
  return Roofline(
    compute_s=compute_s,
    memory_s=memory_s,
    ici_s=ici_s,
    dcn_s=dcn_s,
    waiting_s=waiting_s,
    step_s=step_s,
    mfu=model_s / step_s if step_s else 0.0,
    compiler_s=compiler_s,
    mosaic_s=kernels.mosaic if kernels else None,
    compiler_mfu=model_s / compiler_s if compiler_s else None,
  )


def _exposed_seconds(
  collective: collectives_lib.Collective,
  link_seconds: float,
  kernels: kernel_time.KernelSeconds,
) -> float:
  """Seconds per step that an asynchronous collective outlasts its kernels.

  Each collective counts alone: of two in flight at once, which share links, the
  wait is longer. Transfers between slices, whose end is on the hosts, wait
  nothing.
  """
  if not collective.is_async or collective.name not in kernels.overlapping:
    return 0.0
  overlap = collective.count * kernels.overlapping[collective.name]
  return max(0.0, link_seconds - overlap)


def _ici_seconds(
  collective: collectives_lib.Collective,
  chip: chips.Chip,
  link_bytes_per_s: float,
) -> float:
  """Seconds per step on links within a slice."""
  num_links = 1
  if chip.torus_dims:
    # A ring along each dimension of the torus, in both directions if it wraps.
    dims = min(collective.torus_dims, chip.torus_dims)
    num_links = dims * (2 if collective.is_ring else 1)
  seconds = collective.ici_bytes / (num_links * link_bytes_per_s)
  return collective.count * seconds


def _dcn_seconds(
  collective: collectives_lib.Collective, chip: chips.Chip
) -> float:
  """Seconds per step on links between slices; 0 if their speed is unknown."""
  if not chip.dcn_bytes_per_s:
    return 0.0
  return collective.count * (collective.dcn_bytes / chip.dcn_bytes_per_s)
