# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Warnings about a step, and advice to make it fit."""

from __future__ import annotations

import dataclasses

from pax.aot.hlo import collectives
from pax.aot.report import advice, memory, step_report

MIB = 2**20
LAYERS, DIM = 12, 1024
WEIGHT = memory.StateArray(
  path='mdl_vars/w',
  shape=(LAYERS, DIM, 4 * DIM),
  dtype='float32',
  sharding='-, data, mdl',
  num_shards=8,
  num_bytes=LAYERS * DIM * 4 * DIM * 4 // 8,
)
TABLE = memory.StateArray(
  path='mdl_vars/emb_var',
  shape=(32000, DIM),
  dtype='float32',
  sharding='replicated',
  num_shards=1,
  num_bytes=32000 * DIM * 4,
)
GATHER = collectives.Collective(
  name='all-gather.1',
  kind='all-gather',
  axes=('data',),
  count=LAYERS,
  ici_bytes=100.0 * MIB,
  dcn_bytes=0.0,
  torus_dims=1,
  is_ring=True,
  is_async=False,
  num_elements=DIM * DIM // 2,
  result_elements=DIM * 4 * DIM // 2,
  op_name='jit(train_step)/lm/layer/einsum',
)


def warn(*sent, arrays=(WEIGHT,), flops=None, devices=8):
  return advice.warnings(arrays, sent, flops, devices)


def test_an_array_that_every_device_holds_whole():
  (message,) = warn(arrays=(WEIGHT, TABLE))
  assert (
    'mdl_vars/emb_var [32000, 1024] is replicated' in message
    and '125 MiB' in message
  )
  assert warn(arrays=(WEIGHT, TABLE), devices=1) == []


def test_gathering_a_layer_of_weights_is_as_meant():
  assert warn(GATHER) == []


def test_gathering_anything_else_is_silent():
  gather = dataclasses.replace(GATHER, result_elements=16 * 1000 * DIM)
  (message,) = warn(gather, gather)
  assert (
    'is not of a weight sends 2400 MiB per step: lm/layer/einsum' in message
  )
  small = dataclasses.replace(gather, count=1, ici_bytes=1.0 * MIB)
  assert warn(small) == []


def test_devices_that_compute_the_same():
  flops = step_report.Flops(model=1.0, matmuls=1.0, total=1.0, xla_ratio=3.9)
  (message,) = warn(flops=flops)
  assert 'compute 3.9 times the FLOPs of the step' in message
  assert warn(flops=dataclasses.replace(flops, xla_ratio=1.1)) == []


def test_what_takes_most_is_named_first():
  largest_temporaries = memory.Memory(
    parameters=10.0, other_variables=0.0, optimizer=20.0, batch=1.0,
    activations=5.0, temporaries=40.0,
  )  # fmt: skip
  first, second, third = advice.memory_savings(largest_temporaries, [TABLE])
  assert 'PERCORE_BATCH_SIZE' in first
  assert 'Adafactor' in second
  assert 'ICI_MESH_SHAPE' in third and 'mdl_vars/emb_var' in third


def step_memory(total):
  return memory.Memory(
    parameters=total - 10, other_variables=0, optimizer=0, batch=0,
    temporaries=10.0, capacity=100.0,
  )  # fmt: skip


def test_what_jax_sets_aside_is_told_where_it_is_too_little():
  (message,) = advice.gpu_preallocation_warnings(step_memory(90.0))
  assert 'takes 90%' in message and 'MEM_FRACTION' in message
  # Within the preallocation, and over the capacity.
  for total in (75.0, 101.0):
    assert not [*advice.gpu_preallocation_warnings(step_memory(total))]
