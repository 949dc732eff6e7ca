# SPDX-License-Identifier: Apache-2.0
"""Bytes that a compiled program reads from and writes to HBM."""

from __future__ import annotations

from pax.aot.hlo import hlo_parser
from praxis.layers.moe import routed_rows

# Opcodes that access no memory themselves.
_FREE = frozenset({
  'after-all', 'bitcast', 'call', 'call-start', 'conditional', 'constant',
  'get-tuple-element', 'iota', 'opt-barrier', 'parameter', 'partition-id',
  'replica-id', 'tuple', 'while',
})  # fmt: skip
_SLICES = ('dynamic-slice', 'slice', 'gather')


def program_bytes(module: hlo_parser.Module) -> float:
  """Returns the bytes that one device accesses in HBM in a step.

  Intermediate values of a fusion and arrays in on-chip memory count nothing.
  Of a sliced array only the slice counts, of an array updated in place only
  the update.
  """
  return sum(
    execution.count
    * kernel_bytes(module, execution.instruction, execution.computation)
    for execution in module.executions()
    if not execution.is_fused
  )


def kernel_bytes(
  module: hlo_parser.Module,
  instruction: hlo_parser.Instruction,
  computation: hlo_parser.Computation,
) -> float:
  """Returns the bytes that one run of an unfused instruction accesses.

  Args:
    module: the compiled program.
    instruction: the instruction.
    computation: the computation that holds it.
  """
  if instruction.opcode in _FREE or instruction.opcode.endswith('-done'):
    return 0.0
  if not routed_rows.share_of(instruction.op_name):
    return 0.0
  if instruction.opcode == 'custom-call' and not instruction.operands:
    return 0.0  # AllocateBuffer.
  operands = [computation.instructions[name] for name in instruction.operands]
  if instruction.opcode == 'fusion':
    return _fusion_bytes(module, instruction)
  if instruction.opcode in _SLICES:
    return 2 * _hbm_bytes(instruction.types[:1])
  if instruction.opcode == 'dynamic-update-slice':
    return 2 * _hbm_bytes(operands[1].types)
  # The result of `copy-start` is (target, source, ...); the source is counted
  # as an operand.
  is_start = instruction.opcode.endswith('-start')
  results = instruction.types[:1] if is_start else instruction.types
  return _hbm_bytes(results) + sum(_hbm_bytes(x.types) for x in operands)


def _fusion_bytes(
  module: hlo_parser.Module, instruction: hlo_parser.Instruction
) -> float:
  [fused] = module.called(instruction)
  bytes_read = sum(_read_bytes(module, fused, p) for p in fused.parameters)
  root = fused.root
  while root.opcode == 'bitcast':
    root = fused.instructions[root.operands[0]]
  if root.opcode == 'dynamic-update-slice':
    update = fused.instructions[root.operands[1]]
    return bytes_read + update.num_bytes
  return bytes_read + _hbm_bytes(instruction.types)


def _read_bytes(
  module: hlo_parser.Module,
  fused: hlo_parser.Computation,
  array: hlo_parser.Instruction,
) -> float:
  """Bytes read of an array within a fusion: its slices if all users slice it.

  Users are within the fusion, or within one that it contains.
  """
  full_bytes = _hbm_bytes(array.types)
  slice_bytes = 0.0
  for user in fused.users.get(array.name, ()):
    is_first = user.operands[0] == array.name
    if user.opcode == 'fusion':
      [inner] = module.called(user)
      slice_bytes += sum(
        _read_bytes(module, inner, parameter)
        for operand, parameter in zip(
          user.operands, inner.parameters, strict=True
        )
        if operand == array.name
      )
    elif is_first and user.opcode in _SLICES:
      slice_bytes += user.num_bytes
    elif not (is_first and user.opcode == 'dynamic-update-slice'):
      return full_bytes
  return min(full_bytes, slice_bytes)


def _hbm_bytes(types: tuple[hlo_parser.ArrayType, ...]) -> float:
  return sum(t.num_bytes for t in types if t.memory_space == 0)
