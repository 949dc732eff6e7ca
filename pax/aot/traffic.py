# SPDX-License-Identifier: Apache-2.0
"""Bytes that a program moves between a device's memory and its cores."""

from __future__ import annotations

from pax.aot import hlo

# Say where something is, and move nothing.
_FREE = frozenset({
  'after-all', 'bitcast', 'call', 'conditional', 'constant',
  'get-tuple-element', 'iota', 'opt-barrier', 'parameter', 'partition-id',
  'replica-id', 'tuple', 'while',
})  # fmt: skip
_TAKES_PART = ('dynamic-slice', 'slice', 'gather')


def memory_bytes(module: hlo.Module) -> float:
  """Returns what one device reads from and writes to its memory in a step.

  What a fused instruction keeps to itself costs nothing, nor does what the
  compiler put into memory on the chip. Of an array that is sliced the slice
  counts, of one that is updated in place the update.
  """
  total = 0.0
  for visit in module.visits():
    if not visit.is_fused:
      total += visit.times * moved_bytes(module, visit)
  return total


def moved_bytes(module: hlo.Module, visit: hlo.Visit) -> float:
  """Returns what one instruction, which is not fused, moves when it runs."""
  one, where = visit.instruction, visit.computation
  if one.opcode in _FREE or one.opcode.endswith('-done'):
    return 0.0
  if one.opcode == 'custom-call' and not one.operands:
    return 0.0  # Names a buffer.
  operands = [where.instructions[name] for name in one.operands]
  if one.opcode == 'fusion':
    return _of_fusion(module.called(one)[0], one)
  if one.opcode in _TAKES_PART:
    return 2 * _in_memory(one.types[:1])
  if one.opcode == 'dynamic-update-slice':
    return 2 * _in_memory(operands[1].types)
  # What starts a copy makes source and target; the source was counted.
  made = one.types[:1] if one.opcode.endswith('-start') else one.types
  return _in_memory(made) + sum(_in_memory(x.types) for x in operands)


def _of_fusion(fused: hlo.Computation, one: hlo.Instruction) -> float:
  """What a fused instruction reads and writes."""
  read = sum(_read(fused, parameter) for parameter in fused.parameters)
  root = fused.root
  while root.opcode == 'bitcast':
    root = fused.instructions[root.operands[0]]
  if root.opcode == 'dynamic-update-slice':
    update = fused.instructions[root.operands[1]]
    return read + sum(t.num_bytes for t in update.types)
  return read + _in_memory(one.types)


def _read(fused: hlo.Computation, parameter: hlo.Instruction) -> float:
  """What is read of a parameter: parts of it, where nobody takes it whole."""
  whole = _in_memory(parameter.types)
  parts = 0.0
  for user in fused.users.get(parameter.name, ()):
    is_first = user.operands[0] == parameter.name
    if is_first and user.opcode in _TAKES_PART:
      parts += user.num_bytes
    elif not (is_first and user.opcode == 'dynamic-update-slice'):
      return whole
  return min(whole, parts)


def _in_memory(types: tuple[hlo.ArrayType, ...]) -> float:
  return sum(t.num_bytes for t in types if t.space == 0)
