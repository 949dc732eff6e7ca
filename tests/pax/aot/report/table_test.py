# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The table of many experiments."""

from __future__ import annotations

from pax.aot.report import table

MEMORY = {
  'parameters': 2**30, 'other_variables': 0, 'optimizer': 2**31,
  'activations': None, 'temporaries': None, 'total': 3 * 2**30,
  'capacity': 12 * 2**30,
}  # fmt: skip
STATE = {
  'experiment': 'a.b.Small', 'topology': 'v4-8', 'num_params': 125e6,
  'memory': MEMORY, 'roofline': None, 'collectives': None, 'fits': None,
  'flops': None, 'compile_s': None,
}  # fmt: skip
ROOFLINE = {'step_s': 0.25, 'mfu': 0.5, 'bound': 'matmuls'}
COMPILED = STATE | {
  'experiment': 'a.b.Large',
  'memory': MEMORY | {'activations': 2**33, 'temporaries': 2**33,
                      'total': 19 * 2**30},
  'roofline': ROOFLINE, 'flops': {'model': 1.0}, 'compile_s': 12.4,
  'fits': False,
  'collectives': [{'ici_bytes': 2**20, 'dcn_bytes': 2**10}] * 2,
}  # fmt: skip
OUTCOMES = [
  table.Outcome(name='a.b.Small', report=STATE),
  table.Outcome(name='a.b.Large', report=COMPILED),
  table.Outcome(name='a.b.Wrong', error='has no mesh'),
]


def test_rows():
  header, alignment, small, large, wrong = table.render_rows(OUTCOMES)
  assert header.count('|') == alignment.count('|') == small.count('|')
  assert small == (
    '| Small | v4-8 | 0.125B | 3.00 GiB | - | - | 25 % | - | - | - | - | - |'
    ' state shapes |'
  )
  assert large == (
    '| Large | v4-8 | 0.125B | 3.00 GiB | 8.00 GiB | 8.00 GiB | does not fit:'
    ' 158 % | 250 ms | 50.0 % | matmuls | 2.00 MiB | 2.00 KiB | compiler, in'
    ' 12 s |'
  )
  assert wrong == '\na.b.Wrong: has no mesh'


def test_what_is_only_predicted_is_no_verdict():
  estimate = COMPILED | {'compile_s': None}
  outcome = table.Outcome(name='a.b.Large', report=estimate)
  (row,) = [*table.render_rows([outcome])][2:]
  assert '| 158 %, estimated |' in row and row.endswith('| estimate |')


def test_page_tells_what_it_is_of():
  text = table.render_page(OUTCOMES)
  assert text.startswith('# ') and text.endswith('\n')
  assert '3 experiments, 1 of them compiled' in text and 'jax 0.' in text


def test_a_line_for_whoever_waits():
  assert 'experiment Small, machine v4-8, parameters' in table.format_line(
    OUTCOMES[0]
  )
  assert table.format_line(OUTCOMES[2]) == 'a.b.Wrong: has no mesh'
