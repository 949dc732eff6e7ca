# SPDX-License-Identifier: Apache-2.0
"""What is known of an experiment on a machine: figures, no words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pax.aot.compiling import Buffer
from pax.aot.memory import Held, Memory
from pax.aot.roofline import Roofline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
  """Floating point operations of a step, on all devices together."""

  # 6·N·tokens and attention (docs/mfu.md): what the model needs.
  model: float
  # What the step multiplies, recomputation too, and all that it computes.
  products: float
  total: float
  # What XLA counts, loops once, over ours counted so: well above 1 where
  # devices compute the same. None: not compiled.
  repeated: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
  """Collectives of one kind along the same axes, in a step."""

  kind: str
  axes: tuple[str, ...]
  # How many, and the bytes each device sends in its slice and between slices.
  times: int
  ici_bytes: float
  dcn_bytes: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """An experiment on a machine."""

  experiment: str
  # The --check_level that it was checked to.
  level: int
  topology: str
  device_kind: str
  num_devices: int
  # Axis -> devices, and -> slices.
  mesh: Mapping[str, int]
  slices: Mapping[str, int]
  num_params: int
  # Shape of a global batch's largest array.
  batch: tuple[int, ...]
  arrays: list[Held]
  memory: Memory
  # What was predicted of it before it was compiled.
  predicted: Memory | None = None
  # Of the tracing and the compiler; None: not done.
  flops: Flops | None = None
  collectives: list[Sent] | None = None
  roofline: Roofline | None = None
  # Seconds of it.
  declare_s: float = 0.0
  trace_s: float | None = None
  compile_s: float | None = None
  # Whether the compiler tried as hard as for a run.
  full_effort: bool = False
  # Why it was not compiled, and how it would be.
  not_compiled: str | None = None
  # False: the step does not fit; None: nobody can say.
  fits: bool | None = None
  # The largest arrays, if it does not fit.
  buffers: list[Buffer] = dataclasses.field(default_factory=list)
  # What is odd, and what would help.
  warnings: list[str] = dataclasses.field(default_factory=list)
  advice: list[str] = dataclasses.field(default_factory=list)

  def as_json(self) -> str:
    """All of it, as one JSON object."""
    data: dict[str, Any] = dataclasses.asdict(self)
    data['memory']['total'] = self.memory.total
    if self.roofline:
      data['roofline']['bound'] = self.roofline.bound
    return json.dumps(data, indent=1)
