# SPDX-License-Identifier: Apache-2.0
"""Bytes that the forward pass of a compiled step keeps for the backward one."""

from __future__ import annotations

from pax.aot import hlo

_TRANSPARENT = ('bitcast', 'copy', 'copy-done', 'opt-barrier')


def kept_bytes(module: hlo.Module) -> float:
  """Returns what loops fill and later loops read, on one device.

  A scan over layers stacks what each keeps. Of a model without a scan nothing
  tells what is kept from what is merely computed, and this is 0.
  """
  kept: dict[tuple[str, int], float] = {}
  for computation in module.computations.values():
    loops = [
      one for one in computation.instructions.values() if one.opcode == 'while'
    ]
    for loop in loops:
      for source, index in _taken_from_loops(computation, loop):
        if source.name != loop.name and _is_filled(module, source, index):
          kept[source.name, index] = _kept(source, index)
  return sum(kept.values())


def _kept(loop: hlo.Instruction, index: int) -> float:
  return loop.types[index].num_bytes


def _taken_from_loops(
  computation: hlo.Computation, loop: hlo.Instruction
) -> list[tuple[hlo.Instruction, int]]:
  """(loop, index) of what a loop is passed from another one's result."""
  initial = computation.instructions[loop.operands[0]]
  found = []
  for name in initial.operands if initial.opcode == 'tuple' else ():
    one = computation.instructions[name]
    while one.opcode in _TRANSPARENT and one.operands:
      one = computation.instructions[one.operands[0]]
    if one.opcode == 'get-tuple-element':
      source = computation.instructions[one.operands[0]]
      if source.opcode == 'while' and len(source.types) > (one.index or 0):
        found.append((source, one.index))
  return found


def _is_filled(module: hlo.Module, loop: hlo.Instruction, index: int) -> bool:
  """Whether the rounds of a loop change that part of what they pass on."""
  (body,) = module.called(loop)
  root = body.root
  if root.opcode != 'tuple':
    return True
  passed = body.instructions[root.operands[index]]
  is_same = passed.opcode == 'get-tuple-element' and passed.index == index
  return not is_same
