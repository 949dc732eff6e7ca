# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Kernel time of a small program by hand, and the clocks of TPUs."""

from __future__ import annotations

import dataclasses

import pytest

from pax.aot.hlo import bytes_accessed, hlo_parser, kernel_time
from pax.summaries import chips
from tests.pax.aot.hlo import hlo_texts

CHIP = chips.Chip(
  kind='round',
  flops=1.0,
  clock_hz=100.0,
  hbm_bytes=1e9,
  hbm_bytes_per_s=4.0,
  source='none',
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
  seconds = kernel_time.kernel_seconds(hlo_parser.parse(PROGRAM), CHIP)
  loop = 6 * 50 / 100
  # Two kernels have no estimate: 32 bytes read, 32 written.
  without_estimate = 2 * (32 + 32) / 4
  assert seconds == kernel_time.KernelSeconds(loop + without_estimate, 0.0)


def test_mosaic_kernels_run_at_half_the_peak_or_the_bandwidth():
  kernel = (
    'custom-call(%done), custom_call_target="tpu_custom_call", '
    'metadata={op_name="jit(step)/scan/splash_fwd/splash_fwd/pallas_call"}'
  )
  module = hlo_parser.parse(PROGRAM.replace('negate(%done)', kernel))
  chip = dataclasses.replace(CHIP, flops=10.0)
  for flops, seconds in ((400, 400 / 5), (0, (32 + 32) / 4)):
    times = kernel_time.kernel_seconds(module, chip, {'splash_fwd': flops})
    assert times.mosaic == seconds
    assert times.xla == 6 * 50 / 100 + (32 + 32) / 4
  with pytest.raises(ValueError, match='splash_fwd'):
    kernel_time.kernel_seconds(module, chip, {'other': 1})


@pytest.mark.parametrize(
  ('op_name', 'flops'),
  [
    ('jit(step)/mm/pallas_call', {'mm': 400, '': 1}),
    ('jit(step)/vmap(mm)/pallas_call', {'mm': 400, 'm': 1}),
    ('jit(step)/transpose(jvp(mm))/pallas_call', {'mm': 400}),
    ('jit(step)/fused/mm/pallas_call', {'fused/mm': 400, 'mm': 1}),
    ('jit(step)/pallas_call', {'': 400, 'mm': 1}),
    ('jit(step)/vmap()/pallas_call', {'': 400}),
  ],
)
def test_kernels_are_found_by_their_names(op_name, flops):
  kernel = (
    'custom-call(%done), custom_call_target="tpu_custom_call",'
    f' metadata={{op_name="{op_name}"}}'
  )
  module = hlo_parser.parse(PROGRAM.replace('negate(%done)', kernel))
  chip = dataclasses.replace(CHIP, flops=10.0)
  assert kernel_time.kernel_seconds(module, chip, flops).mosaic == 400 / 5


def _declaring_400_flops(op_name):
  return (
    'custom-call(%done), custom_call_target="tpu_custom_call",'
    f' metadata={{op_name="{op_name}"}},'
    ' backend_config={"custom_call_config":{"cost_estimate":{"flops":"400"}}}'
  )


def test_kernels_have_the_count_that_they_declare():
  kernel = _declaring_400_flops('jit(step)/pallas_call')
  module = hlo_parser.parse(PROGRAM.replace('negate(%done)', kernel))
  chip = dataclasses.replace(CHIP, flops=10.0)
  # Another kernel without a name is more expensive.
  times = kernel_time.kernel_seconds(module, chip, {'': 800})
  assert times.mosaic == 400 / 5


def test_kernels_that_xla_makes_of_ragged_dots_have_its_count():
  kernel = _declaring_400_flops('jit(step)/ragged_dot_general/ragged-dot-none')
  module = hlo_parser.parse(PROGRAM.replace('negate(%done)', kernel))
  chip = dataclasses.replace(CHIP, flops=10.0)
  assert kernel_time.kernel_seconds(module, chip).mosaic == 400 / 5
  # Rows that are routed to other devices do not count.
  module = hlo_parser.parse(
    PROGRAM.replace(
      'negate(%done)', kernel.replace('step)', 'step)/routed_rows_1_of_4')
    )
  )
  chip = dataclasses.replace(CHIP, flops=1.0)
  assert kernel_time.kernel_seconds(module, chip).mosaic == 100 / 0.5
  # What runs only if experts are not balanced counts nothing.
  rare = kernel.replace('step)', 'step)/routed_rows_0_of_1/routed_rows_1_of_4')
  module = hlo_parser.parse(PROGRAM.replace('negate(%done)', rare))
  assert kernel_time.kernel_seconds(module, chip).mosaic == 0
  assert bytes_accessed.program_bytes(module) < bytes_accessed.program_bytes(
    hlo_parser.parse(PROGRAM.replace('negate(%done)', kernel))
  )
  # Of their metadata it has none.
  module = hlo_parser.parse(
    PROGRAM.replace('negate(%done)', kernel.replace('cost_estimate', 'other'))
  )
  assert kernel_time.kernel_seconds(module, chip).mosaic == (32 + 32) / 4


def test_nothing_is_said_where_nothing_is_known():
  module = hlo_parser.parse(PROGRAM)
  no_clock = dataclasses.replace(CHIP, clock_hz=None)
  assert kernel_time.kernel_seconds(module, no_clock) is None
  no_cycles = hlo_parser.parse(PROGRAM.replace('estimated_cycles', 'cycles'))
  assert kernel_time.kernel_seconds(no_cycles, CHIP) is None


@pytest.mark.parametrize(
  ('kind', 'matrix_units'),
  [('TPU v2', 1), ('TPU v3', 2), ('TPU v4', 8), ('TPU v5e', 4), ('TPU v5', 8)],
)
def test_clocks_explain_the_peaks(kind, matrix_units):
  chip = chips.find(kind)
  peak = chip.clock_hz * matrix_units * 2 * 128 * 128
  assert peak == pytest.approx(chip.flops, rel=0.02)


def test_starts_and_ends_of_collectives_are_no_kernels():
  module = hlo_parser.parse(hlo_texts.FUSED_ALL_GATHER)
  seconds = kernel_time.kernel_seconds(module, CHIP)
  # 50 of the cycles run while the all-gather is in flight.
  overlapping = {'g0': 50 / 100}
  assert seconds == kernel_time.KernelSeconds(5 * 50 / 100, 0.0, overlapping)


def test_kernels_run_beside_collectives_of_sparse_cores():
  module = hlo_parser.parse(hlo_texts.OFFLOADED_REDUCE_SCATTER)
  seconds = kernel_time.kernel_seconds(module, CHIP)
  assert seconds == kernel_time.KernelSeconds(50 / 100, 0.0, {'rs': 50 / 100})
  # The operand and the result of the reduce-scatter, and of the kernel.
  assert bytes_accessed.program_bytes(module) == (128 + 32) + 2 * 32
