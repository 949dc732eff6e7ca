# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Peak memory of steps of a few operations, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pax.aot.jaxpr import liveness
from tests.pax.aot.jaxpr import jaxprs
from tests.pax.aot.jaxpr.jaxprs import shape

LAYERS, ROWS, DIM = 6, 16, 32
# An array of activations on one of four devices; rows are sharded.
ROW_BYTES = ROWS * DIM * 4 / 4


def estimate(fn, weights, batch):
  return liveness.estimate_peak_memory(*jaxprs.trace(fn, weights, batch))


def test_a_scan_keeps_what_each_layer_wants_for_the_backward_pass():
  weights = shape((LAYERS, DIM, DIM))
  batch = shape((ROWS, DIM), 'data')

  @jax.checkpoint
  def layer(x, w):
    return jnp.tanh(x @ w), None

  def loss(w, x):
    return jax.lax.scan(layer, x, w)[0].sum()

  peak = estimate(jax.grad(loss), weights, batch)
  assert peak.saved_activations == LAYERS * ROW_BYTES
  assert (LAYERS * ROW_BYTES, 'float32[6, 16, 32]') in [
    (a.num_bytes, a.type_text) for a in peak.arrays
  ]
  # Two or three arrays of a layer, and the replicated gradient of all weights.
  gradient = LAYERS * DIM * DIM * 4
  layers = peak.temporaries - gradient
  assert ROW_BYTES <= layers <= 2 * DIM * DIM * 4 + 5 * ROW_BYTES


def test_elementwise_operations_are_fused():
  fn = lambda w, x: jnp.square(x * 2.0 + 1.0) @ w
  peak = estimate(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  assert peak.saved_activations == 0 and peak.temporaries == ROW_BYTES


def test_an_array_is_gone_after_its_last_use():
  def fn(w, x):
    for _ in range(5):
      x = x @ w
    return x

  peak = estimate(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  assert peak.temporaries == 2 * ROW_BYTES


def test_weights_are_gathered_again_where_that_needs_less_memory():
  def loss(weights, x):
    for w in weights:
      x = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, w)
    return x.sum()

  weights = [shape((DIM, DIM), 'data')] * LAYERS
  # A gathered weight is as large as the rows of a device.
  peak = estimate(jax.grad(loss), weights, shape((4 * DIM, DIM), 'data'))
  # The inputs of all layers but the first, a gathered weight, and one or two
  # gradients; not the weights of all layers.
  arrays = peak.temporaries / (DIM * DIM * 4)
  assert LAYERS - 1 + 2 <= arrays <= LAYERS - 1 + 3


def test_new_values_of_variables_lie_where_the_old_ones_were():
  fn = lambda w, x: w - 0.1 * w
  peak = estimate(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  assert peak.temporaries == 0


def test_what_a_loop_carries_is_changed_in_place():
  def fn(w, x):
    return jax.lax.scan(lambda c, _: (c @ w, None), x, length=3)[0]

  peak = estimate(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  assert peak.temporaries == ROW_BYTES


def test_an_elementwise_result_takes_the_place_of_what_it_reads_last():
  fn = jaxprs.products_of_product
  peak = estimate(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  # At the end y, in the buffer of a first matmul, and both results.
  assert peak.temporaries == 2 * ROW_BYTES + DIM * DIM * 4


def chain(w, x):
  """Four links, each with a matmul whose sum is a result."""
  sums = []
  for _ in range(4):
    x = x @ w
    sums.append(jnp.sum(x @ w))
  return x, sums


def test_of_two_orders_the_one_that_holds_less():
  rows = 16 * ROWS
  peak = estimate(chain, shape((DIM, DIM)), shape((rows, DIM), 'data'))
  # A link, its matmul or the next link, and the sums.
  assert peak.temporaries == 2 * 16 * ROW_BYTES + 4 * 4


def test_arrays_of_a_shard_map_have_its_shardings():
  # Nine for each device; no input and no constraint has this size.
  rows = 4 * 9

  def fn(w, x):
    wide = jax.shard_map(
      lambda x: jnp.concatenate([x, x, x[:1]]),
      mesh=jaxprs.mesh(),
      in_specs=PartitionSpec('data'),
      out_specs=PartitionSpec('data'),
    )(x)
    return wide @ w

  peak = estimate(fn, shape((DIM, DIM)), shape((ROWS, DIM), 'data'))
  # The result of the shard_map and of the matmul.
  assert peak.temporaries == 2 * rows * DIM * 4 / 4
