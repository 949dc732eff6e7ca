# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Gradients of a product: what they are, and that they come at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle, py_utils
from praxis.layers import base_ops, embedding_softmax
from tests.praxis.layers import running

X, W = running.normal(3, 4), running.normal(4, 5, seed=1)
EINSUM = running.build(pax_fiddle.Config(base_ops.EinsumOp), 'ab,bc->ac', X, W)


def loss(x, w):
  layer, variables = EINSUM
  return jnp.sum(jnp.sin(layer.apply(variables, 'ab,bc->ac', x, w)))


def barriers(fn, *args):
  """How many values each barrier of a program ties."""
  text = str(jax.make_jaxpr(fn)(*args))
  return [
    line.split('=')[0].count(':')
    for line in text.splitlines()
    if 'optimization_barrier' in line
  ]


def test_gradients_are_the_same():
  with base_ops.gradients_at_once():
    dx, dw = jax.grad(loss, (0, 1))(X, W)
    rows = jax.vmap(jax.grad(loss, 1), (0, None))(X[:, np.newaxis], W)
  d = np.cos(X @ W)
  np.testing.assert_allclose(dx, d @ W.T, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(dw, X.T @ d, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(rows.sum(0), dw, rtol=1e-5, atol=1e-6)


def test_a_barrier_ties_them():
  # Functions of their own, as JAX traces each once.
  assert barriers(jax.grad(lambda x, w: loss(x, w), (0, 1)), X, W) == []
  with base_ops.gradients_at_once():
    assert barriers(jax.grad(lambda x, w: loss(x, w), (0, 1)), X, W) == [2]
    # What goes forward is not held up.
    assert barriers(lambda x, w: loss(x, w), X, W) == []


@pytest.mark.parametrize(
  'softmax',
  [
    embedding_softmax.FullSoftmax,
    embedding_softmax.SharedEmbeddingSoftmax,
    embedding_softmax.NClassMajorSharedEmbeddingSoftmax,
  ],
)
@pytest.mark.parametrize('platform', ['tpu', 'gpu'])
def test_logits_tie_those_of_product_and_bias(softmax, platform):
  config = pax_fiddle.Config(softmax, input_dims=4, num_classes=6)
  ids, weights = jnp.zeros((3, 1), jnp.int32), jnp.ones((3, 1))
  layer, variables = running.build(config, X, weights, class_ids=ids)

  def xent(variables, x):
    return layer.apply(variables, x, weights, class_ids=ids).avg_xent

  with py_utils.tracing_for(platform):
    assert barriers(jax.grad(xent, (0, 1)), variables, X) == [2, 2]
