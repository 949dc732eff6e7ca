# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What is odd about a step, and what would make it fit."""

from __future__ import annotations

import dataclasses

from pax.aot import advice, collectives, memory, report

MIB = 2**20
LAYERS, DIM = 12, 1024
WEIGHT = memory.Held(
  path='mdl_vars/w',
  shape=(LAYERS, DIM, 4 * DIM),
  dtype='float32',
  sharding='-, data, mdl',
  parts=8,
  num_bytes=LAYERS * DIM * 4 * DIM * 4 // 8,
)
TABLE = memory.Held(
  path='mdl_vars/emb_var',
  shape=(32000, DIM),
  dtype='float32',
  sharding='whole',
  parts=1,
  num_bytes=32000 * DIM * 4,
)
GATHER = collectives.Collective(
  kind='all-gather',
  axes=('data',),
  times=LAYERS,
  ici_bytes=100.0 * MIB,
  dcn_bytes=0.0,
  torus_dims=1,
  is_ring=True,
  is_async=False,
  elements=DIM * DIM // 2,
  result_elements=DIM * 4 * DIM // 2,
  op_name='jit(train_step)/lm/layer/einsum',
)


def told(*sent, arrays=(WEIGHT,), flops=None, devices=8):
  return advice.warnings(arrays, sent, flops, devices)


def test_an_array_that_every_device_holds_whole():
  (one,) = told(arrays=(WEIGHT, TABLE))
  assert 'mdl_vars/emb_var [32000, 1024] is whole' in one and '125 MiB' in one
  assert told(arrays=(WEIGHT, TABLE), devices=1) == []


def test_gathering_a_layer_of_weights_is_as_meant():
  assert told(GATHER) == []


def test_gathering_anything_else_is_silent():
  odd = dataclasses.replace(GATHER, result_elements=16 * 1000 * DIM)
  (one,) = told(odd, odd)
  assert 'no weight explains sends 2400 MiB a step: lm/layer/einsum' in one
  small = dataclasses.replace(odd, times=1, ici_bytes=1.0 * MIB)
  assert told(small) == []


def test_devices_that_compute_the_same():
  flops = report.Flops(model=1.0, products=1.0, total=1.0, repeated=3.9)
  (one,) = told(flops=flops)
  assert 'compute 3.9 times what the step needs' in one
  assert told(flops=dataclasses.replace(flops, repeated=1.1)) == []


def test_what_takes_most_is_named_first():
  held = memory.Memory(
    parameters=10.0, other_variables=0.0, optimizer=20.0, batch=1.0,
    activations=5.0, temporaries=40.0,
  )  # fmt: skip
  first, second, third = advice.to_fit(held, [TABLE])
  assert 'PERCORE_BATCH_SIZE' in first
  assert 'Adafactor' in second
  assert 'ICI_MESH_SHAPE' in third and 'mdl_vars/emb_var' in third
