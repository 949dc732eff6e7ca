# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Parsing, execution counts and memory of a small program, by hand."""

from __future__ import annotations

import pytest

from pax.aot import memory
from pax.aot.hlo import bytes_accessed, hlo_parser

# Loops of 3 and 5 iterations: the first fills f32[3,8], the second reads it.
PROGRAM = """\
HloModule jit_step, is_scheduled=true

%fused_slice (p0: f32[3,8], p1: s32[]) -> f32[1,8] {
  %p0 = f32[3,8]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %ds = f32[1,8]{1,0} dynamic-slice(%p0, %p1, %zero)
}

%check (c: (s32[], f32[3,8])) -> pred[] {
  %c = (s32[], /*index=1*/f32[3,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %limit = s32[]{:T(128)} constant(3)
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%fill (b: (s32[], f32[3,8])) -> (s32[], f32[3,8]) {
  %b = (s32[], f32[3,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %stack = f32[3,8]{1,0} get-tuple-element(%b), index=1
  %row = f32[1,8]{1,0:T(8,128)S(1)} broadcast(%one)
  %filled = f32[3,8]{1,0} dynamic-update-slice(%stack, %row, %j, %one)
  ROOT %out = (s32[], f32[3,8]) tuple(%next, %filled)
}

%drain (d: (s32[], f32[3,8], bf16[4])) -> (s32[], f32[3,8], bf16[4]) {
  %d = (s32[], f32[3,8]{1,0}, bf16[4]{0}) parameter(0)
  %k = s32[] get-tuple-element(%d), index=0
  %read = f32[3,8]{1,0} get-tuple-element(%d), index=1
  %sum = bf16[4]{0} get-tuple-element(%d), index=2
  %part = f32[1,8]{1,0} fusion(%read, %k), kind=kLoop, calls=%fused_slice
  %new = bf16[4]{0} add(%sum, %sum), metadata={op_name="jit(step)/add"}
  ROOT %out2 = (s32[], f32[3,8], bf16[4]) tuple(%k, %read, %new)
}

%check2 (e: (s32[], f32[3,8], bf16[4])) -> pred[] {
  ROOT %never = pred[] constant(false)
}

ENTRY %main (x: bf16[4]) -> bf16[4] {
  %x = bf16[4]{0} parameter(0)
  %begin = s32[] constant(0)
  %empty = f32[3,8]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  %init = (s32[], f32[3,8]) tuple(%begin, %empty)
  %loop = (s32[], f32[3,8]{1,0}) while(%init), \
condition=%check, body=%fill
  %kept = f32[3,8]{1,0} get-tuple-element(%loop), index=1
  %init2 = (s32[], f32[3,8], bf16[4]) tuple(%begin, %kept, %x)
  %loop2 = (s32[], f32[3,8]{1,0}, bf16[4]{0}) while(%init2), \
condition=%check2, body=%drain, \
backend_config={"known_trip_count":{"n":"5"}}
  ROOT %result = bf16[4]{0} get-tuple-element(%loop2), index=2
}
"""


@pytest.fixture(scope='module')
def module():
  return hlo_parser.parse(PROGRAM)


def test_instructions(module):
  entry = module.computations[module.entry]
  assert module.entry == 'main'
  loop = entry.instructions['loop2']
  assert loop.opcode == 'while' and loop.operands == ('init2',)
  assert [(t.dtype, t.dims) for t in loop.types] == [
    ('s32', ()), ('f32', (3, 8)), ('bf16', (4,)),
  ]  # fmt: skip
  assert loop.num_bytes == 4 + 96 + 8
  assert entry.root.name == 'result' and entry.root.tuple_index == 2
  body = module.computations['drain']
  assert body.instructions['new'].op_name == 'jit(step)/add'
  row = module.computations['fill'].instructions['row']
  assert row.types[0].memory_space == 1


def test_rounds_of_loops(module):
  entry = module.computations[module.entry]
  trip_counts = {
    name: module.trip_count(entry.instructions[name], entry)
    for name in ('loop', 'loop2', 'init')
  }
  assert trip_counts == {'loop': 3, 'loop2': 5, 'init': 1}
  executions = {e.instruction.name: e for e in module.executions()}
  counts = {name: executions[name].count for name in ('filled', 'new', 'ds')}
  assert counts == {'filled': 3, 'new': 5, 'ds': 5}
  ds = executions['ds']
  assert ds.is_fused and ds.computation.name == 'fused_slice'


def test_what_a_later_loop_reads_is_kept(module):
  assert memory.saved_activation_bytes(module) == 3 * 8 * 4


def test_bytes_from_and_to_memory(module):
  # First loop: an addition of scalars (12) and a broadcast that reads one (4);
  # its row is in on-chip memory and so is the update. Second: a row of the
  # stack and the index read, a row written; an addition of bf16[4].
  first = 3 * ((4 + 4 + 4) + 4 + 0)
  second = 5 * ((32 + 4 + 32) + 3 * 8)
  assert bytes_accessed.program_bytes(module) == first + second
