# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Gathered rows, and their gradients where an id has many rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import attentions, base_ops
from praxis.layers import embedding_softmax as es


def _gradient_of_sum(fn, table):
  """The gradient of the sum of rows in float32, as a numpy array."""
  loss = lambda table: jnp.sum(fn(table).astype(jnp.float32))
  return np.asarray(jax.jit(jax.grad(loss))(table), np.float32)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize('fill_zeros', [False, True])
def test_many_rows_of_an_id_all_count(dtype, fill_zeros):
  ids = jnp.concatenate([jnp.full(4096, 2), jnp.zeros(3, int)])
  got = _gradient_of_sum(
    lambda t: base_layer.gather_rows(t, ids, fill_zeros=fill_zeros),
    jnp.zeros((4, 2), dtype),
  )
  # bfloat16 would end at 256, float16 at 2048.
  np.testing.assert_array_equal(got, [[3, 3], [0, 0], [4096, 4096], [0, 0]])


@pytest.mark.parametrize('lookup_style', ['index', 'matmul'])
@pytest.mark.parametrize(
  'cls', [es.Embedding, es.NClassMajorSharedEmbeddingSoftmax]
)
def test_frequent_tokens(cls, lookup_style):
  layer = cls.config(
    num_classes=3,
    input_dims=2,
    lookup_style=lookup_style,
    dtype=jnp.bfloat16,
    fprop_dtype=jnp.bfloat16,
  ).Instantiate()
  ids = jnp.ones((8, 512), jnp.int32)
  variables = layer.init(jax.random.key(0), ids, method='emb_lookup')
  loss = lambda variables: jnp.sum(
    layer.apply(variables, ids, method='emb_lookup').astype(jnp.float32)
  )
  gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(variables))
  (table,) = [x for x in gradients if x.shape == (3, 2)]
  np.testing.assert_array_equal(
    np.asarray(table, np.float32), [[0, 0], [4096, 4096], [0, 0]]
  )


def test_biases_of_all_positions_count():
  # Each bucket of distances has hundreds of pairs of positions.
  layer = attentions.RelativeBias.config(
    num_heads=1,
    relative_attention_num_buckets=4,
    relative_attention_max_distance=8,
    dtype=jnp.bfloat16,
    fprop_dtype=jnp.bfloat16,
  ).Instantiate()
  positions = jnp.arange(128)[jnp.newaxis]
  variables = layer.init(jax.random.key(0), positions)
  loss = lambda variables: jnp.sum(
    layer.apply(variables, positions).astype(jnp.float32)
  )
  (got,) = jax.tree.leaves(jax.jit(jax.grad(loss))(variables))
  num_pairs = 128 * 128
  assert abs(np.sum(np.asarray(got, np.float32)) / num_pairs - 1) < 2**-8


def test_values_and_both_kinds_of_derivatives_of_negative_and_foreign_ids():
  table = jnp.arange(6, dtype=jnp.bfloat16).reshape(3, 2)
  tangent = 10 * table
  ids = jnp.asarray([[2, -1], [0, 3]])
  rows, d_rows = jax.jvp(
    lambda t: base_layer.gather_rows(t, ids, fill_zeros=True),
    (table,),
    (tangent,),
  )
  want = np.asarray([[[4, 5], [0, 0]], [[0, 1], [0, 0]]], np.float32)
  assert rows.dtype == d_rows.dtype == jnp.bfloat16
  np.testing.assert_array_equal(np.asarray(rows, np.float32), want)
  np.testing.assert_array_equal(np.asarray(d_rows, np.float32), 10 * want)
  got = _gradient_of_sum(
    lambda t: base_layer.gather_rows(t, [[2, -1], [0, 2]]), table
  )
  np.testing.assert_array_equal(got, [[1, 1], [0, 0], [3, 3]])


def test_rows_of_integers():
  table = np.asarray([[1, 2], [3, 4]], np.int8)
  rows = base_ops.ArrayLookup.config().Instantiate()(
    jnp.asarray(table), jnp.asarray([1, 0])
  )
  assert rows.dtype == jnp.int8
  np.testing.assert_array_equal(rows, table[::-1])
