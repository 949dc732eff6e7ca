# SPDX-License-Identifier: Apache-2.0
"""Bytes that a compiled program reads from and writes to HBM."""

from __future__ import annotations

from pax.aot.hlo import hlo_parser
from praxis.layers.moe import routed_rows

# Opcodes that access no memory themselves.
_FREE = frozenset({
  'after-all', 'bitcast', 'call', 'conditional', 'constant',
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
    return _fusion_bytes(module.called(instruction)[0], instruction)
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
  fused: hlo_parser.Computation, instruction: hlo_parser.Instruction
) -> float:
  bytes_read = sum(_parameter_bytes(fused, p) for p in fused.parameters)
  root = fused.root
  while root.opcode == 'bitcast':
    root = fused.instructions[root.operands[0]]
  if root.opcode == 'dynamic-update-slice':
    update = fused.instructions[root.operands[1]]
    return bytes_read + update.num_bytes
  return bytes_read + _hbm_bytes(instruction.types)


def _parameter_bytes(
  fused: hlo_parser.Computation, parameter: hlo_parser.Instruction
) -> float:
  """Bytes read of a fusion's parameter: its slices if all users slice it."""
  full_bytes = _hbm_bytes(parameter.types)
  slice_bytes = 0.0
  for user in fused.users.get(parameter.name, ()):
    is_first = user.operands[0] == parameter.name
    if is_first and user.opcode in _SLICES:
      slice_bytes += user.num_bytes
    elif not (is_first and user.opcode == 'dynamic-update-slice'):
      return full_bytes
  return min(full_bytes, slice_bytes)


def _hbm_bytes(types: tuple[hlo_parser.ArrayType, ...]) -> float:
  return sum(t.num_bytes for t in types if t.memory_space == 0)
