# SPDX-License-Identifier: Apache-2.0
"""What a train step holds on one device, by what it is for."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from pax import partitioning
from pax.aot import activations, hlo
from praxis import base_layer

# Arrays that every device holds whole and that are larger are told of.
_LARGE_REPLICATED = 64 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """Bytes on one device; None where only the compiler could tell."""

  parameters: float
  # Statistics of layers and the like.
  other_variables: float
  optimizer: float
  batch: float
  # What the forward pass keeps for the backward one, where it is a loop.
  activations: float | None = None
  # Gradients and all else that is gone after the step.
  temporaries: float | None = None
  # What the step returns beside the state.
  outputs: float | None = None
  program: float | None = None
  # What there is; None for CPUs.
  capacity: float | None = None
  # What the compiler's block for activations and temporaries has of gaps.
  gaps: float = 0.0

  def parts(self) -> dict[str, float | None]:
    """Bytes by what they are for, in words."""
    return {
      'parameters': self.parameters,
      'other variables': self.other_variables,
      'optimizer': self.optimizer,
      'batch': self.batch,
      'activations kept': self.activations,
      'temporaries': self.temporaries,
      'outputs': self.outputs,
      'program': self.program,
    }

  @property
  def total(self) -> float:
    """Of what is known."""
    return sum(v for v in self.parts().values() if v is not None)

  @property
  def fits(self) -> bool | None:
    """None: the device has no limit that is known."""
    return None if self.capacity is None else self.total <= self.capacity


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
  """One array of the state."""

  path: str
  shape: tuple[int, ...]
  dtype: str
  # Mesh axes of each dimension, as text.
  sharding: str
  # In how many parts it is.
  parts: int
  # Bytes on one device.
  num_bytes: int

  @property
  def is_large_and_whole(self) -> bool:
    """Whether every device holds all of a large array."""
    return self.parts == 1 and self.num_bytes >= _LARGE_REPLICATED


def held(partitioner: partitioning.Partitioner) -> list[Held]:
  """Returns the arrays of the train state, the largest on a device first."""
  leaves = jax.tree_util.tree_leaves_with_path(partitioner.state_metadata)
  found = []
  for path, leaf in leaves:
    shard = leaf.sharding.shard_shape(leaf.shape)
    parts = round(math.prod(leaf.shape) / max(1, math.prod(shard)))
    found.append(
      Held(
        path=jax.tree_util.keystr(path, simple=True, separator='/'),
        shape=tuple(leaf.shape),
        dtype=str(leaf.dtype),
        sharding=_spec_text(leaf.sharding.spec),
        parts=parts,
        num_bytes=math.prod(shard) * leaf.dtype.itemsize,
      )
    )
  return sorted(found, key=lambda one: -one.num_bytes)


def of_state(
  partitioner: partitioning.Partitioner, capacity: float | None
) -> Memory:
  """Returns what state and batch take: exact, without compiling."""
  bytes_of = partitioning.state_bytes_per_device
  variables = partitioner.state_metadata.mdl_vars
  parameters = bytes_of(variables[base_layer.PARAMS])
  return Memory(
    parameters=parameters,
    other_variables=bytes_of(variables) - parameters,
    optimizer=bytes_of(partitioner.state_metadata.opt_states),
    batch=bytes_of(partitioner.input_spec),
    capacity=capacity,
  )


def of_program(state: Memory, analysis: Any, module: hlo.Module) -> Memory:
  """Returns what a compiled step takes, by XLA's own `analysis` of it.

  Of a TPU it tells the peak, by which its compiler takes a step or refuses it:
  not by the block for temporaries, which has gaps besides and may alone be more
  than there is (docs/aot.md). Of a CPU it tells the block alone.
  """
  arguments = analysis.argument_size_in_bytes
  outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
  if state.capacity is None:
    within = analysis.temp_size_in_bytes
  else:
    within = analysis.peak_memory_in_bytes - arguments - max(0, outputs)
  kept = min(activations.kept_bytes(module), within)
  return dataclasses.replace(
    state,
    # Small arrays take up whole tiles.
    other_variables=state.other_variables + max(0, arguments - state.total),
    activations=kept,
    temporaries=within - kept,
    gaps=max(0, analysis.temp_size_in_bytes - within),
    outputs=outputs,
    program=analysis.generated_code_size_in_bytes,
  )


def _spec_text(spec: Any) -> str:
  def entry(axes: Any) -> str:
    if axes is None:
      return '-'
    return axes if isinstance(axes, str) else '+'.join(axes) or '-'

  return ', '.join(entry(axes) for axes in spec) or 'whole'
