# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Seconds by hand, on a machine with round figures."""

from __future__ import annotations

import dataclasses

import pytest

from pax.aot.hlo import collectives, kernel_time
from pax.aot.report import roofline
from pax.summaries import chips

CHIP = chips.Chip(
  kind='round',
  flops=100.0,
  hbm_bytes=1e9,
  hbm_bytes_per_s=10.0,
  link_bytes_per_s=5.0,
  torus_dims=3,
  dcn_bytes_per_s=1.0,
  source='none',
)
SENT = collectives.Collective(
  name='all-reduce.1',
  kind='all-reduce',
  axes=('data',),
  count=2,
  ici_bytes=60.0,
  dcn_bytes=3.0,
  torus_dims=2,
  is_ring=True,
  is_async=False,
  num_elements=1,
  result_elements=1,
  op_name='',
)


def compute(*sent, memory_bytes=50.0, kernels=None):
  return roofline.compute_roofline(
    CHIP,
    model_flops=600.0,
    matmul_flops=800.0,
    memory_bytes=memory_bytes,
    collectives=sent,
    kernels=kernels,
  )


def test_products_bound_what_moves_little():
  limit = compute()
  assert (limit.compute_s, limit.memory_s, limit.step_s) == (8.0, 5.0, 8.0)
  assert limit.bound == 'matmuls' and limit.mfu == 6 / 8


def test_memory_may_take_longer():
  limit = compute(memory_bytes=120.0)
  assert limit.step_s == 12.0 and limit.bound == 'HBM'


def test_links_of_a_torus_work_both_ways_along_each_dimension():
  limit = compute(SENT)
  # Two dimensions in both directions: 4 links of 5.
  assert limit.ici_s == 2 * 60 / 20 and limit.dcn_s == 2 * 3 / 1
  assert limit.waiting_s == 12.0 and limit.step_s == 8.0 + 12.0
  open_ended = dataclasses.replace(SENT, is_ring=False)
  assert compute(open_ended).ici_s == 2 * 60 / 10


def test_what_runs_meanwhile_costs_only_what_it_takes_longer():
  overlapped = dataclasses.replace(SENT, is_async=True)
  assert compute(overlapped).step_s == 8.0
  longer = dataclasses.replace(overlapped, count=6)
  assert compute(longer).step_s == 6 * 3.0
  assert compute(longer).bound.startswith('links')


def test_kernels_wait_for_links_too():
  assert compute(SENT).compiler_s is None
  kernels = kernel_time.KernelSeconds(xla=14.0, mosaic=4.0)
  limit = compute(SENT, kernels=kernels)
  assert limit.mosaic_s == 4.0
  assert limit.compiler_s == 18.0 + 12.0
  assert limit.compiler_mfu == 6 / 30
  overlapped = dataclasses.replace(SENT, is_async=True, count=20)
  assert compute(overlapped, kernels=kernels).compiler_s == 20 * 3.0


def test_asynchronous_collectives_that_outlast_their_kernels_are_exposed():
  start = dataclasses.replace(SENT, is_async=True, dcn_bytes=0.0)
  # Two runs of 3 seconds each, 2 of them beside kernels.
  kernels = kernel_time.KernelSeconds(18.0, 0.0, {'all-reduce.1': 2.0})
  limit = compute(start, kernels=kernels)
  assert limit.waiting_s == 2 * (3.0 - 2.0)
  assert limit.compiler_s == 18.0 + 2.0
  hidden = kernel_time.KernelSeconds(18.0, 0.0, {'all-reduce.1': 3.5})
  assert compute(start, kernels=hidden).compiler_s == 18.0


def test_without_a_program_products_alone_tell():
  limit = roofline.compute_roofline(
    CHIP,
    model_flops=600.0,
    matmul_flops=800.0,
    memory_bytes=None,
    collectives=None,
  )
  assert limit.step_s == 8.0 and limit.ici_s is None and limit.memory_s is None


@pytest.mark.parametrize('kind', ['TPU v4', 'TPU v5 lite', 'TPU v6 lite'])
def test_the_table_has_what_a_roofline_wants(kind):
  chip = chips.find(kind)
  assert chip.hbm_bytes_per_s and chip.link_bytes_per_s and chip.source
