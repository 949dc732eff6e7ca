# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What is alive in a step of a few operations, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pax.aot import prediction
from tests.pax.aot import jaxprs
from tests.pax.aot.jaxprs import shape

LAYERS, ROWS, DIM = 6, 16, 32
# An array of activations on one of four devices, which split the rows.
ROW_BYTES = ROWS * DIM * 4 / 4


def predict(fn, weights, batch):
  return prediction.predict(*jaxprs.trace(fn, weights, batch))


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


def test_what_a_loop_carries_is_changed_in_place():
  def fn(w, x):
    return jax.lax.scan(lambda c, _: (c @ w, None), x, length=3)[0]

  found = predict(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  assert found.temporaries == ROW_BYTES


def test_an_elementwise_result_takes_the_place_of_what_it_reads_last():
  def fn(w, x):
    y = (x @ w) * (x @ (w + 1))
    return y @ w, y.T @ x

  found = predict(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  # In the end y, where one of the first products was, and both results.
  assert found.temporaries == 2 * ROW_BYTES + DIM * DIM * 4


def chain(w, x):
  """Four links, and of each a product whose sum is a result."""
  sums = []
  for _ in range(4):
    x = x @ w
    sums.append(jnp.sum(x @ w))
  return x, sums


def test_of_two_orders_the_one_that_holds_less():
  rows = 16 * ROWS
  found = predict(chain, shape((DIM, DIM)), shape((rows, DIM), 'data'))
  # A link, its product or the next link, and the sums.
  assert found.temporaries == 2 * 16 * ROW_BYTES + 4 * 4
