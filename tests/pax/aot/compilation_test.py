# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""XLA's messages about a step that does not fit."""

from __future__ import annotations

import pytest

from pax.aot import compilation
from pax.aot.report import memory

# As from libtpu 0.0.42.
TEMPORARIES = (
  'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for'
  ' HLO temporaries (19.32G) exceeds available HBM (15.75G).'
)
LISTED = """\
RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in \
memory space hbm. Used 33.50G of 30.75G hbm. Exceeded hbm capacity by 2.75G.

Total hbm usage >= 34.75G:
    reserved        1.25G
    program        23.50G
    arguments      10.00G

  Largest program allocations in hbm:

  1. Size: 6.00G
     Operator: op_name="jit(step)/softmax" source_file="a.py"
     Shape: f32[64,1024,32000]{2,1,0:T(8,128)}
     Unpadded size: 6.00G
     XLA label: fusion.1
     Allocation type: HLO temp
     ==========================

  2. Size: 512.0M
     Shape: bf16[8,1024]{1,0}
     Allocation type: HLO temp
     ==========================
"""


def test_all_is_too_much():
  error = compilation.DoesNotFitError(LISTED)
  assert (
    error.required_bytes == 33.5 * 2**30 and error.capacity == 30.75 * 2**30
  )
  first, second = error.buffers
  assert first == memory.Buffer(
    num_bytes=6 * 2**30,
    shape='f32[64,1024,32000]{2,1,0:T(8,128)}',
    op_name='jit(step)/softmax',
    allocation_type='HLO temp',
  )
  assert second.num_bytes == 2**29 and second.op_name == ''


def test_temporaries_are_told_with_arguments():
  error = compilation.DoesNotFitError(TEMPORARIES)
  assert error.buffers == []
  assert error.required_bytes == pytest.approx(19.32 * 2**30)
  assert error.capacity == 15.75 * 2**30


def test_what_says_nothing():
  error = compilation.DoesNotFitError('RESOURCE_EXHAUSTED: no')
  assert error.required_bytes is error.capacity is None
