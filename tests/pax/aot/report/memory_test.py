# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Memory of compiled steps from XLA's figures, by hand."""

from __future__ import annotations

import types

import pytest

from pax.aot.hlo import hlo_parser
from pax.aot.report import memory
from tests.pax.aot.hlo import hlo_texts

STATE = memory.Memory(
  parameters=50.0, other_variables=4.0, optimizer=20.0, batch=6.0,
  capacity=200.0,
)  # fmt: skip
# Padded arguments, 10 bytes of metrics, 30 bytes at the peak and 5 of gaps.
XLA = types.SimpleNamespace(
  argument_size_in_bytes=82,
  output_size_in_bytes=84,
  alias_size_in_bytes=74,
  temp_size_in_bytes=35,
  peak_memory_in_bytes=82 + 10 + 30,
  generated_code_size_in_bytes=3,
)
MODULE = hlo_parser.parse("""\
ENTRY %main (x: f32[8]) -> f32[8] {
  ROOT %x = f32[8]{0} parameter(0)
}
""")


def test_a_tpu_counts_the_peak():
  step = memory.compiled_memory(STATE, XLA, MODULE)
  assert (step.temporaries, step.fragmentation) == (30, 5)
  assert step.other_variables == 4 + 2
  assert step.total == 82 + 10 + 30 + 3


def test_gaps_count():
  step = memory.compiled_memory(
    STATE, XLA, MODULE, is_fragmentation_allocated=True
  )
  assert (step.temporaries, step.fragmentation) == (35, 0)


@pytest.mark.parametrize(('capacity', 'fits'), [(80, True), (79, False)])
def test_capacity(capacity, fits):
  step = memory.Memory(
    parameters=50.0, other_variables=4.0, optimizer=20.0, batch=6.0,
    capacity=capacity,
  )  # fmt: skip
  assert step.fits is fits


def test_what_a_later_loop_reads_is_kept():
  module = hlo_parser.parse(hlo_texts.TWO_LOOPS)
  assert memory.saved_activation_bytes(module) == 3 * 8 * 4


def test_a_step_without_a_backward_pass_saves_nothing():
  step = memory.compiled_memory(STATE, XLA, None)
  assert (step.activations, step.temporaries) == (None, 30)
