# SPDX-License-Identifier: Apache-2.0
"""Warnings about a step's inefficiencies, and advice to make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pax.aot.hlo import collectives
from pax.aot.report import memory, step_report

_GIB = 2**30
_MIB = 2**20
# Implicit all-gathers that send less per step are not reported.
_MIN_GATHERED_BYTES = 64 * _MIB
# XLA counts a few percent more FLOPs than matmuls and elementwise operations.
_MAX_XLA_RATIO = 1.3
# Weights of repeated layers are one array that is gathered layer by layer.
_MAX_LAYERS = 256
# Fraction of a GPU's memory that JAX preallocates by default.
_GPU_PREALLOCATION = 0.75


def warnings(
  arrays: Sequence[memory.StateArray],
  sent: Sequence[collectives.Collective],
  flops: step_report.Flops | None,
  num_devices: int,
) -> list[str]:
  """Returns a message for each likely inefficiency.

  Args:
    arrays: of the train state.
    sent: collectives of the step.
    flops: of the step; None: not traced.
    num_devices: of the mesh.
  """
  messages = list(_replicated_arrays(arrays)) if num_devices > 1 else []
  messages += _implicit_gathers(arrays, sent, num_devices)
  if flops and flops.xla_ratio and flops.xla_ratio > _MAX_XLA_RATIO:
    messages.append(
      f'devices compute {flops.xla_ratio:.1f} times the FLOPs of the step: a'
      ' part of it is not sharded over the mesh'
    )
  return messages


def gpu_preallocation_warnings(step_memory: memory.Memory) -> Iterator[str]:
  """Yields a warning if a step exceeds the memory that JAX preallocates."""
  if step_memory.capacity is None:
    return
  share = step_memory.total / step_memory.capacity
  if _GPU_PREALLOCATION < share <= 1:
    yield (
      f'JAX preallocates {_GPU_PREALLOCATION:.0%} of a GPU and the step takes'
      f' {share:.0%}: run it with XLA_PYTHON_CLIENT_MEM_FRACTION=.95'
    )


def memory_savings(
  step_memory: memory.Memory, arrays: Sequence[memory.StateArray]
) -> list[str]:
  """Returns changes that reduce the three largest categories of memory."""
  shard = 'shard the state over more devices with --set ICI_MESH_SHAPE=...'
  if replicated := [a for a in arrays if a.is_large_and_replicated]:
    paths = ', '.join(array.path for array in replicated[:3])
    shard += f', or shard the replicated arrays {paths}'
  savings = [
    (step_memory.optimizer, f'use Adafactor instead of Adam, or {shard}'),
    (step_memory.parameters, shard),
    (
      step_memory.activations or 0.0,
      'save fewer activations: --set'
      ' CHECKPOINT_POLICY=AutodiffCheckpointType.SAVE_NOTHING, or use smaller'
      ' microbatches: --set task.train.gradient_accumulation_steps=..., or a'
      ' smaller batch: --set PERCORE_BATCH_SIZE=...',
    ),
    (
      step_memory.temporaries or 0.0,
      'use a smaller batch: --set PERCORE_BATCH_SIZE=..., shorter sequences:'
      ' --set MAX_SEQ_LEN=..., or more devices along mdl',
    ),
  ]
  savings.sort(key=lambda saving: -saving[0])
  return [
    f'{size / _GIB:.2f} GiB: {message}' for size, message in savings[:3] if size
  ]


def decoding_savings(name: str) -> str:
  """Returns changes that reduce the memory of a step that decodes.

  Args:
    name: what the step does.
  """
  return (
    f'{name}: decode fewer rows at once, shard the weights over mdl, too, or'
    ' keep them sharded: --set DECODE_GATHERED_AXES=[]'
  )


def _replicated_arrays(arrays: Sequence[memory.StateArray]) -> Iterator[str]:
  for array in arrays:
    if array.is_large_and_replicated:
      yield (
        f'{array.path} {list(array.shape)} is replicated on every device:'
        f' {array.num_bytes / _MIB:.0f} MiB'
      )


def _implicit_gathers(
  arrays: Sequence[memory.StateArray],
  sent: Sequence[collectives.Collective],
  num_devices: int,
) -> Iterator[str]:
  """All-gathers of activations, sharded differently where they are used."""
  weight_sizes = {math.prod(array.shape) for array in arrays}
  bytes_by_op: dict[str, float] = {}
  for collective in sent:
    if collective.kind != 'all-gather' or _may_be_weight(
      collective, weight_sizes, num_devices
    ):
      continue
    op_name = collective.op_name.removeprefix('jit(train_step)/')
    num_bytes = collective.count * (collective.ici_bytes + collective.dcn_bytes)
    bytes_by_op[op_name] = bytes_by_op.get(op_name, 0.0) + num_bytes
  for op_name, num_bytes in sorted(
    bytes_by_op.items(), key=lambda item: -item[1]
  ):
    if num_bytes >= _MIN_GATHERED_BYTES:
      yield (
        'an all-gather that is not of a weight sends'
        f' {num_bytes / _MIB:.0f} MiB per step: {op_name}'
      )


def _may_be_weight(
  collective: collectives.Collective, weight_sizes: set[int], num_devices: int
) -> bool:
  """Whether the result has the size of a weight, of its layer or its shard."""
  size = collective.result_elements
  return any(
    weight_size % size == 0 and weight_size // size <= num_devices * _MAX_LAYERS
    for weight_size in weight_sizes
  )
