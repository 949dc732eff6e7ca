# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Materialized values of a few operations, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pax.aot.jaxpr import fusion
from tests.pax.aot.jaxpr import jaxprs

ROWS, DIM, VOCAB = 16, 32, 64
BF16, F32 = 'bfloat16', 'float32'


def materialized(fn, weights, batch):
  """(dtype, shape) of materialized values with more than a value per row."""
  eqns, results, shardings = jaxprs.inline(fn, weights, batch)
  values = fusion.materialized_values(eqns, results, shardings).start
  types = [(str(v.aval.dtype), v.aval.shape) for v in values]
  return sorted(t for t in types if len(t[1]) > 1 and t[1][-1] > 1)


def bf16(dims, *spec):
  return jaxprs.shape(dims, *spec, dtype=jnp.bfloat16)


def capped_loss(w, x):
  # The first row is the bias.
  logits = (x @ w + w[0]).astype(jnp.float32)
  return jax.nn.logsumexp(30 * jnp.tanh(logits / 30), axis=-1).sum()


def test_logits_are_kept_once_before_they_are_made_wider():
  values = materialized(
    capped_loss, bf16((DIM, VOCAB)), bf16((ROWS, DIM), 'data')
  )
  assert values == [(BF16, (ROWS, VOCAB))]


def test_the_gradient_adds_that_of_the_logits_and_nothing_of_the_softmax():
  values = materialized(
    jax.grad(capped_loss), bf16((DIM, VOCAB)), bf16((ROWS, DIM), 'data')
  )
  assert (F32, (ROWS, VOCAB)) not in values
  assert values.count((BF16, (ROWS, VOCAB))) == 2


def attend(w, x):
  probs = jax.nn.softmax((x @ w).astype(jnp.float32), axis=-1)
  return probs.astype(jnp.bfloat16) @ w.T


def test_a_softmax_that_a_product_takes_keeps_its_exponentials():
  values = materialized(attend, bf16((DIM, VOCAB)), bf16((ROWS, DIM), 'data'))
  assert values == [
    (BF16, (ROWS, DIM)), (BF16, (ROWS, VOCAB)), (F32, (ROWS, VOCAB)),
  ]  # fmt: skip


def test_not_where_its_rows_lie_on_several_devices():
  values = materialized(
    attend, bf16((DIM, VOCAB), None, 'data'), bf16((ROWS, VOCAB // 2))
  )
  assert (F32, (ROWS, VOCAB)) in values
  split = materialized(
    lambda w, x: attend(w, x[:, :DIM]),
    bf16((DIM, VOCAB)),
    bf16((ROWS, VOCAB), None, 'data'),
  )
  assert (F32, (ROWS, VOCAB)) not in split


def test_what_several_products_want_of_two_arrays_is_made_once():
  def one(w, x):
    y = jnp.exp(x @ w)
    return y @ w, y.T @ x

  weights = jaxprs.shape((DIM, DIM))
  batch = jaxprs.shape((ROWS, DIM), 'data')
  # Two matmuls (or one) and the result; y takes the buffer of a matmul.
  two = materialized(jaxprs.products_of_product, weights, batch)
  assert two.count((F32, (ROWS, DIM))) == 3
  assert materialized(one, weights, batch).count((F32, (ROWS, DIM))) == 2


def test_what_a_sum_goes_through_anyway_is_kept_for_the_product():
  def fn(w, x):
    y = jnp.tanh(x)
    return y @ w, y.sum(0)

  eqns, results, shardings = jaxprs.inline(
    fn, jaxprs.shape((DIM, DIM)), jaxprs.shape((ROWS, DIM), 'data')
  )
  values = fusion.materialized_values(eqns, results, shardings)
  (tanh,) = values.fused_with_reduction
  assert tanh in values.start and tanh.aval.shape == (ROWS, DIM)


def test_a_part_alone_is_copied_out():
  def fn(w, x):
    y = jax.lax.scan(lambda c, _: (c @ w, c), x, length=5)[1][1:3]
    return y.sum(), (y * y).sum()

  values = materialized(
    fn, jaxprs.shape((DIM, DIM)), jaxprs.shape((ROWS, DIM), 'data')
  )
  assert (F32, (2, ROWS, DIM)) in values


def test_a_matmul_that_is_multiplied_by_itself():
  def fn(w, x):
    y = x @ w
    return (y * y) @ w.T

  values = materialized(
    fn, jaxprs.shape((DIM, VOCAB)), jaxprs.shape((ROWS, DIM), 'data')
  )
  assert values == [(F32, (ROWS, DIM)), (F32, (ROWS, VOCAB))]
