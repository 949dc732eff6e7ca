# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""HBM accesses of a small program, by hand."""

from __future__ import annotations

from pax.aot.hlo import bytes_accessed, hlo_parser
from tests.pax.aot.hlo import hlo_texts


def test_bytes_from_and_to_memory():
  module = hlo_parser.parse(hlo_texts.TWO_LOOPS)
  # First loop: an addition of scalars (12) and a broadcast that reads one (4);
  # its row is in on-chip memory and so is the update. Second: a row of the
  # stack and the index read, a row written; an addition of bf16[4].
  first = 3 * ((4 + 4 + 4) + 4 + 0)
  second = 5 * ((32 + 4 + 32) + 3 * 8)
  assert bytes_accessed.program_bytes(module) == first + second


def test_slices_within_fusions_of_fusions():
  outer = """\
%fused_outer (q0: f32[3,8], q1: s32[]) -> f32[1,8] {
  %q0 = f32[3,8]{1,0} parameter(0)
  %q1 = s32[] parameter(1)
  ROOT %inner = f32[1,8]{1,0} fusion(%q0, %q1), kind=kLoop, calls=%fused_slice
}

%check (c"""
  nested = hlo_texts.TWO_LOOPS.replace('%fused_slice\n', '%fused_outer\n')
  modules = [
    hlo_parser.parse(text)
    for text in (hlo_texts.TWO_LOOPS, nested.replace('%check (c', outer))
  ]
  assert 'fused_outer' in modules[1].computations
  alone, within = map(bytes_accessed.program_bytes, modules)
  assert within == alone
