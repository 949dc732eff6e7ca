# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Parsing and execution counts of a small program, by hand."""

from __future__ import annotations

import pytest

from pax.aot.hlo import hlo_parser
from tests.pax.aot.hlo import hlo_texts


@pytest.fixture(scope='module')
def module():
  return hlo_parser.parse(hlo_texts.TWO_LOOPS)


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


@pytest.mark.parametrize(
  ('scope', 'branch'),
  [
    ('', 'long'),
    ('routed_rows_1_of_2/', 'long'),
    ('routed_rows_0_of_1/', 'short'),
  ],
)
def test_of_a_condition_the_longest_usual_branch_runs(scope, branch):
  module = hlo_parser.parse(f"""\
%long (p: f32[8]) -> f32[8] {{
  %p = f32[8] parameter(0)
  %a = f32[8] negate(%p)
  ROOT %b = f32[8] negate(%a), metadata={{op_name="jit(step)/{scope}neg"}}
}}

%short (q: f32[8]) -> f32[8] {{
  ROOT %q = f32[8] parameter(0)
}}

ENTRY %main (i: s32[], x: f32[8]) -> f32[8] {{
  %i = s32[] parameter(0)
  %x = f32[8] parameter(1)
  ROOT %y = f32[8] conditional(%i, %x, %x), \
branch_computations={{%long, %short}}
}}
""")
  condition = module.computations['main'].instructions['y']
  assert [c.name for c in module.called(condition)] == [branch]


def test_attributes_of_several_lines():
  # As of Mosaic kernels, whose metadata have lines of their own.
  text = hlo_texts.TWO_LOOPS.replace(
    'add(%sum, %sum), metadata=',
    'add(%sum, %sum), frontend_attributes={kernel_metadata={\n'
    '"xprof":"{\\"block\\": 512, \\"}\\": 1}"\n}}, metadata=',
  )
  module = hlo_parser.parse(text)
  new = module.computations['drain'].instructions['new']
  assert new.op_name == 'jit(step)/add' and '"xprof"' in new.attributes
  assert len(list(module.executions())) == len(
    list(hlo_parser.parse(hlo_texts.TWO_LOOPS).executions())
  )


def test_a_text_that_ends_early_is_an_error():
  lines = hlo_texts.TWO_LOOPS.splitlines()
  for end in (-1, 2):
    with pytest.raises(ValueError, match='must end after a computation'):
      hlo_parser.parse('\n'.join(lines[:end]))
