# SPDX-License-Identifier: Apache-2.0
"""Instructions that start and end an asynchronous collective.

A collective is a pair of `all-gather-start` and `all-gather-done`; a pair of
`call-start` and `call-done`, by which SparseCores run it; or fusions of the TPU
compiler: one starts it, some continue it with a matmul, and one ends it. Each
of them repeats the collective. Collectives within `jax.shard_map` share a
channel.
"""

from __future__ import annotations

import re

from pax.aot.hlo import hlo_parser

KINDS = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'ragged-all-to-all',
  'collective-permute',
)
_START, _DONE = '-start', '-done'
_OFFLOADED = 'call'
_FUSED_START = 'custom_call_target="AsyncCollectiveStart"'
_FUSED_DONE = 'custom_call_target="AsyncCollectiveDone"'
_CHANNEL = re.compile(r'\bchannel_id=(\d+)')


def kind(instruction: hlo_parser.Instruction) -> str | None:
  """Returns the kind of a collective or of its start; None: neither."""
  name = instruction.opcode.removesuffix(_START)
  return name if name in KINDS else None


def identity(instruction: hlo_parser.Instruction) -> str:
  """Returns kind, channel and dimensions of a collective."""
  match = _CHANNEL.search(instruction.attributes)
  dims = [array.dims for array in instruction.types]
  return f'{kind(instruction)} {match and match[1]} {dims}'


def starts_in_fusion(computation: hlo_parser.Computation) -> bool:
  """Returns whether a fused computation starts a collective."""
  return _calls(computation, _FUSED_START)


def offloaded(module: hlo_parser.Module) -> set[str]:
  """Returns the names of the computations that SparseCores run."""
  return {
    called.name
    for computation in module.computations.values()
    for instruction in computation.instructions.values()
    if instruction.opcode == _OFFLOADED + _START
    for called in module.called(instruction)
  }


def started(
  module: hlo_parser.Module, instruction: hlo_parser.Instruction
) -> hlo_parser.Instruction | None:
  """Returns the collective that an instruction starts; None: it starts none."""
  if instruction.opcode == _OFFLOADED + _START:
    [called] = module.called(instruction)
    return called.root if called.root.opcode in KINDS else None
  if instruction.opcode.endswith(_START):
    return instruction if kind(instruction) else None
  return _fused_collective(module, instruction, _FUSED_START)


def ended(
  module: hlo_parser.Module, instruction: hlo_parser.Instruction
) -> str | None:
  """Returns which collective an instruction ends; None: it ends none.

  Returns:
    Name of the start, or the identity of a collective in fusions.
  """
  if instruction.opcode.endswith(_DONE):
    kinds = (*KINDS, _OFFLOADED)
    may_end_one = instruction.opcode.removesuffix(_DONE) in kinds
    return instruction.operands[0] if may_end_one else None
  collective = _fused_collective(module, instruction, _FUSED_DONE)
  return None if collective is None else identity(collective)


def _fused_collective(
  module: hlo_parser.Module, instruction: hlo_parser.Instruction, target: str
) -> hlo_parser.Instruction | None:
  if instruction.opcode != 'fusion':
    return None
  (computation,) = module.called(instruction)
  if not _calls(computation, target):
    return None
  instructions = computation.instructions.values()
  return next((i for i in instructions if i.opcode in KINDS), None)


def _calls(computation: hlo_parser.Computation, target: str) -> bool:
  return any(
    instruction.opcode == 'custom-call' and target in instruction.attributes
    for instruction in computation.instructions.values()
  )
