# SPDX-License-Identifier: Apache-2.0
"""Memory of a train step on one device, by category."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Protocol

import jax
from jax.sharding import PartitionSpec

from pax import partitioning
from pax.aot.hlo import hlo_parser
from praxis import base_layer

# Replicated arrays of at least these bytes are reported.
_LARGE_REPLICATED = 64 * 2**20
# Opcodes that pass on their operand's value.
_FORWARDING = ('bitcast', 'copy', 'copy-done', 'opt-barrier')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """Bytes on one device; None where only the compiler knows."""

  parameters: float
  # Non-trainable variables and the step counter.
  other_variables: float
  optimizer: float
  batch: float
  # What loops of the forward pass stack for the backward pass.
  activations: float | None = None
  # Gradients and everything else that is freed in the step.
  temporaries: float | None = None
  # Outputs other than the state, which takes the buffers of the old one.
  outputs: float | None = None
  program: float | None = None
  # Usable memory of the device; None for CPUs.
  capacity: float | None = None
  # Unused gaps in XLA's allocation for activations and temporaries.
  fragmentation: float = 0.0

  def by_category(self) -> dict[str, float | None]:
    """Returns the bytes of each category, by its label."""
    return {
      'parameters': self.parameters,
      'other variables': self.other_variables,
      'optimizer state': self.optimizer,
      'batch': self.batch,
      'saved activations': self.activations,
      'temporaries': self.temporaries,
      'outputs': self.outputs,
      'program': self.program,
    }

  @property
  def total(self) -> float:
    """Sum of the known categories."""
    return sum(v for v in self.by_category().values() if v is not None)

  @property
  def fits(self) -> bool | None:
    """Whether the total is within the capacity; None if that is unknown."""
    return None if self.capacity is None else self.total <= self.capacity


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateArray:
  """One array of the train state."""

  path: str
  shape: tuple[int, ...]
  dtype: str
  # Mesh axes of each dimension, as `-, data, mdl`.
  sharding: str
  num_shards: int
  # Bytes on one device.
  num_bytes: int

  @property
  def is_large_and_replicated(self) -> bool:
    """Whether every device holds a full copy of a large array."""
    return self.num_shards == 1 and self.num_bytes >= _LARGE_REPLICATED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffer:
  """One of the largest allocations at the peak of a step."""

  num_bytes: float
  # dtype and dimensions.
  shape: str
  # JAX name stack and primitive.
  op_name: str
  # The type in XLA's words, e.g. `HLO temp`; '' for estimates.
  allocation_type: str = ''


class MemoryAnalysis(Protocol):
  """What `jax.stages.Compiled.memory_analysis` returns."""

  argument_size_in_bytes: int
  output_size_in_bytes: int
  # Outputs in donated buffers of arguments.
  alias_size_in_bytes: int
  temp_size_in_bytes: int
  peak_memory_in_bytes: int
  generated_code_size_in_bytes: int


def state_arrays(partitioner: partitioning.Partitioner) -> list[StateArray]:
  """Returns the arrays of the train state, the largest shards first."""
  arrays = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    partitioner.state_metadata
  ):
    shard_size = math.prod(leaf.sharding.shard_shape(leaf.shape))
    arrays.append(
      StateArray(
        path=jax.tree_util.keystr(path, simple=True, separator='/'),
        shape=tuple(leaf.shape),
        dtype=str(leaf.dtype),
        sharding=_spec_text(leaf.sharding.spec),
        num_shards=round(math.prod(leaf.shape) / max(1, shard_size)),
        num_bytes=shard_size * leaf.dtype.itemsize,
      )
    )
  return sorted(arrays, key=lambda array: -array.num_bytes)


def state_memory(
  partitioner: partitioning.Partitioner, capacity: float | None
) -> Memory:
  """Returns the memory of state and batch: exact, without compiling."""
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


def compiled_memory(
  state: Memory,
  analysis: MemoryAnalysis,
  module: hlo_parser.Module | None,
  *,
  is_fragmentation_allocated: bool = False,
) -> Memory:
  """Returns the memory of a compiled step, from XLA's memory analysis.

  Where the capacity is known, activations and temporaries are the peak: the
  TPU compiler accepts or rejects a step by its peak memory, not by the
  allocation for temporaries, which has gaps (docs/aot.md). On CPUs they are
  that allocation.

  Args:
    state: memory of state and batch.
    analysis: of the compiled step.
    module: its HLO; None: it has no backward pass.
    is_fragmentation_allocated: whether the runtime allocates the temporaries as
      one block, with its gaps: GPUs.
  """
  arguments = analysis.argument_size_in_bytes
  outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
  if state.capacity is None:
    temporaries = analysis.temp_size_in_bytes
  else:
    temporaries = analysis.peak_memory_in_bytes - arguments - max(0, outputs)
  activations = None
  if module is not None:
    activations = min(saved_activation_bytes(module), temporaries)
  fragmentation = max(0, analysis.temp_size_in_bytes - temporaries)
  if is_fragmentation_allocated:
    temporaries, fragmentation = temporaries + fragmentation, 0
  return dataclasses.replace(
    state,
    # Tile padding of small arrays.
    other_variables=state.other_variables + max(0, arguments - state.total),
    activations=activations,
    temporaries=temporaries - (activations or 0),
    fragmentation=fragmentation,
    outputs=outputs,
    program=analysis.generated_code_size_in_bytes,
  )


def saved_activation_bytes(module: hlo_parser.Module) -> float:
  """Returns the bytes on one device that loops fill and later loops read.

  These are the residuals that a scan over layers stacks for its backward pass.
  Without a scan residuals and temporaries look the same, and this is 0.
  """
  sizes: dict[tuple[str, int], float] = {}
  for computation in module.computations.values():
    for loop in computation.instructions.values():
      if loop.opcode != 'while':
        continue
      for source, index in _inputs_from_loops(computation, loop):
        if source.name != loop.name and _is_updated(module, source, index):
          sizes[source.name, index] = source.types[index].num_bytes
  return sum(sizes.values())


def _inputs_from_loops(
  computation: hlo_parser.Computation, loop: hlo_parser.Instruction
) -> Iterator[tuple[hlo_parser.Instruction, int]]:
  """The results of other loops, as (loop, index), that a loop starts with."""
  initial = computation.instructions[loop.operands[0]]
  for name in initial.operands if initial.opcode == 'tuple' else ():
    value = computation.instructions[name]
    while value.opcode in _FORWARDING and value.operands:
      value = computation.instructions[value.operands[0]]
    if value.opcode == 'get-tuple-element':
      source = computation.instructions[value.operands[0]]
      index = value.tuple_index or 0
      if source.opcode == 'while' and len(source.types) > index:
        yield source, index


def _is_updated(
  module: hlo_parser.Module, loop: hlo_parser.Instruction, index: int
) -> bool:
  """Whether the body of a loop changes that element of its carry."""
  (body,) = module.called(loop)
  root = body.root
  if root.opcode != 'tuple':
    return True
  value = body.instructions[root.operands[index]]
  is_passed_on = (
    value.opcode == 'get-tuple-element' and value.tuple_index == index
  )
  return not is_passed_on


def _spec_text(spec: PartitionSpec) -> str:
  def entry_text(entry: str | tuple[str, ...] | None) -> str:
    if entry is None:
      return '-'
    return entry if isinstance(entry, str) else '+'.join(entry) or '-'

  return ', '.join(entry_text(entry) for entry in spec) or 'replicated'
