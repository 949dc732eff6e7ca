# SPDX-License-Identifier: Apache-2.0
"""The figures of an ahead-of-time report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pax.aot.hlo.collectives import CollectiveTotal
from pax.aot.report.memory import Buffer, Memory, StateArray
from pax.aot.report.roofline import Roofline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
  """Floating point operations of a step, on all devices together."""

  # What the model needs: 6·N·tokens and attention (docs/mfu.md).
  model: float
  # What the step computes in matmuls and in all, with recomputation.
  matmuls: float
  total: float
  # XLA's count over ours, both with one iteration per loop. Well above 1 where
  # devices repeat each other's work. None: not compiled, or loops unrolled.
  xla_ratio: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RematPolicy:
  """Figures of a step with a remat policy, estimated from its jaxpr."""

  # Name of the AutodiffCheckpointType.
  name: str
  # Memory of a device.
  num_bytes: float
  # FLOPs of the matmuls of a step, on all devices together.
  flops: float
  # Whether the memory is well below the capacity; None: capacity unknown.
  fits: bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """The analysis of an experiment on a machine."""

  experiment: str
  # The --check_level of the analysis.
  level: int
  topology: str
  device_kind: str
  num_devices: int
  # Devices along each mesh axis, and slices along each.
  mesh: Mapping[str, int]
  dcn_mesh: Mapping[str, int]
  num_params: int
  # Shape of the largest array of a global batch.
  batch: tuple[int, ...]
  arrays: list[StateArray]
  memory: Memory
  # Memory estimated from the jaxpr, before compilation.
  predicted: Memory | None = None
  # That of the compiled steps besides the update, by what they do.
  memory_besides_update: Mapping[str, Memory] = dataclasses.field(
    default_factory=dict
  )
  # None: not traced.
  flops: Flops | None = None
  # None: not compiled.
  collectives: list[CollectiveTotal] | None = None
  roofline: Roofline | None = None
  # Seconds to build the configuration, to trace and to compile.
  setup_s: float = 0.0
  trace_s: float | None = None
  compile_s: float | None = None
  # Whether XLA's effort was that of a run.
  full_effort: bool = False
  # Why the step was not compiled, and how it can be.
  not_compiled: str | None = None
  # Whether the step fits; None: unknown, as the capacity is unknown or the step
  # is not compiled.
  fits: bool | None = None
  # The largest arrays of a step that does not fit.
  buffers: list[Buffer] = dataclasses.field(default_factory=list)
  # Likely inefficiencies, and changes that save memory.
  warnings: list[str] = dataclasses.field(default_factory=list)
  advice: list[str] = dataclasses.field(default_factory=list)
  # Remat policies by their FLOPs, the fewest first; None: not compared.
  remat_policies: list[RematPolicy] | None = None
  # The values of --topology and --set; None: the default machine.
  asked_topology: str | None = None
  settings: Sequence[str] = ()

  def to_json(self) -> str:
    """Returns the report as a JSON object, with `total` and `bound`."""
    data: dict[str, Any] = dataclasses.asdict(self)
    data['memory']['total'] = self.memory.total
    for name, memory in self.memory_besides_update.items():
      data['memory_besides_update'][name]['total'] = memory.total
    if self.roofline:
      data['roofline']['bound'] = self.roofline.bound
    return json.dumps(data, indent=1)
