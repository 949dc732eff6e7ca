# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What is alive in a step of a few operations, by hand."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pax.aot import prediction

LAYERS, ROWS, DIM = 6, 16, 32
# An array of activations on one of four devices, which split the rows.
ROW_BYTES = ROWS * DIM * 4 / 4


@functools.cache
def mesh():
  return Mesh(np.asarray(jax.devices()[:4]), ('data',))


def shape(dims, *spec):
  sharding = NamedSharding(mesh(), P(*spec))
  return jax.ShapeDtypeStruct(dims, jnp.float32, sharding=sharding)


def predict(fn, weights, batch):
  jaxpr = jax.make_jaxpr(fn)(weights, batch).jaxpr
  partitioner = types.SimpleNamespace(
    state_metadata=weights, input_spec=batch, mesh=mesh()
  )
  return prediction.predict(jaxpr, partitioner)


def test_a_scan_keeps_what_each_layer_wants_for_the_backward_pass():
  weights = shape((LAYERS, DIM, DIM))
  batch = shape((ROWS, DIM), 'data')

  @jax.checkpoint
  def layer(x, w):
    return jnp.tanh(x @ w), None

  def loss(w, x):
    return jax.lax.scan(layer, x, w)[0].sum()

  found = predict(jax.grad(loss), weights, batch)
  assert found.activations == LAYERS * ROW_BYTES
  assert (LAYERS * ROW_BYTES, 'float32[6, 16, 32]') in [
    one[:2] for one in found.largest
  ]
  # Two or three arrays of a layer, and the gradient of all weights, whole.
  gradient = LAYERS * DIM * DIM * 4
  layers = found.temporaries - gradient
  assert ROW_BYTES <= layers <= 2 * DIM * DIM * 4 + 5 * ROW_BYTES


def test_elementwise_operations_are_fused():
  fn = lambda w, x: jnp.square(x * 2.0 + 1.0) @ w
  found = predict(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  assert found.activations == 0 and found.temporaries == ROW_BYTES


def test_an_array_is_gone_after_its_last_use():
  def fn(w, x):
    for _ in range(5):
      x = x @ w
    return x

  found = predict(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  assert found.temporaries == 2 * ROW_BYTES


def test_new_values_of_variables_lie_where_the_old_ones_were():
  fn = lambda w, x: w - 0.1 * w
  found = predict(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  assert found.temporaries == 0
