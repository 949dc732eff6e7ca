# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Kernels of a small program, added up by hand; and the clocks."""

from __future__ import annotations

import dataclasses

import pytest

from pax.aot import hlo, reckoned
from pax.summaries import chips

CHIP = chips.Chip(
  kind='round', flops=1.0, clock_hz=100.0, hbm_bytes_per_s=4.0, source='none'
)
PROGRAM = """\
HloModule jit_step, is_scheduled=true

%inner (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p), backend_config={"estimated_cycles":"999"}
}

%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {
  %b = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = f32[8]{0} get-tuple-element(%b), index=1
  %y = f32[8]{0} fusion(%x), kind=kLoop, calls=%inner, \
backend_config={"window_config":{"estimated_cycles":"50"}}
  ROOT %out = (s32[], f32[8]) tuple(%i, %y)
}

%check (c: (s32[], f32[8])) -> pred[] {
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %init = (s32[], f32[8]) tuple(%zero, %a)
  %loop = (s32[], f32[8]{0}) while(%init), condition=%check, body=%body, \
backend_config={"known_trip_count":{"n":"6"}}
  %z = f32[8]{0} get-tuple-element(%loop), index=1
  %sum = f32[8]{0} all-reduce(%z), replica_groups={{0,1}}
  %copied = (f32[8], f32[8], u32[]) copy-start(%sum)
  %done = f32[8]{0} copy-done(%copied)
  %neg = f32[8]{0} negate(%done)
  ROOT %odd = f32[8]{0} fusion(%neg), kind=kLoop, calls=%inner, \
backend_config={"window_config":{"estimated_cycles":"9223372036854775807"}}
}
"""


def test_kernels_follow_each_other():
  found = reckoned.kernel_seconds(hlo.parse(PROGRAM), CHIP)
  of_the_loop = 6 * 50 / 100
  # Read and written: of two kernels nothing is told.
  by_their_bytes = 2 * (32 + 32) / 4
  assert found == of_the_loop + by_their_bytes


def test_nothing_is_said_where_nothing_is_known():
  program = hlo.parse(PROGRAM)
  no_clock = dataclasses.replace(CHIP, clock_hz=None)
  assert reckoned.kernel_seconds(program, no_clock) is None
  untold = PROGRAM.replace('estimated_cycles', 'cycles')
  assert reckoned.kernel_seconds(hlo.parse(untold), CHIP) is None


@pytest.mark.parametrize(
  ('kind', 'matrix_units'),
  [('TPU v2', 1), ('TPU v3', 2), ('TPU v4', 8), ('TPU v5e', 4), ('TPU v5', 8)],
)
def test_clocks_explain_the_peaks(kind, matrix_units):
  chip = chips.find(kind)
  peak = chip.clock_hz * matrix_units * 2 * 128 * 128
  assert peak == pytest.approx(chip.flops, rel=0.02)
