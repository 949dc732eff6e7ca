# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Rows added up by id, with a number of ids that no mesh axis divides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, base_ops, quantizer_objectives
from praxis.layers.embedding_softmax import Embedding
from tests.praxis.layers import running

_RNG = np.random.default_rng(5)
# Id 0, to which padding would be added, is absent.
_IDS = jnp.asarray(_RNG.integers(1, 16, (8, 5), np.int32))
_TABLE = jnp.asarray(_RNG.normal(size=(16, 16)), jnp.float32)


@pytest.fixture(params=[(1, 2, 4), (2, 2, 2)])
def mesh(request):
  mesh = jax.make_mesh(
    request.param,
    ('replica', 'data', 'mdl'),
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
  )
  with jax.set_mesh(mesh):
    yield mesh


def _check(mesh, loss, table, scores, split):
  """Asserts that the gradient on the mesh is that of one device.

  Args:
    mesh: the devices.
    loss: of table, ids, scores and a function that shards activations.
    table: whose gradient is taken.
    scores: given to `loss`.
    split: how activations are sharded.
  """
  want = jax.jit(jax.grad(lambda *args: loss(*args, lambda x: x)))
  shard = lambda x: jax.lax.with_sharding_constraint(x, split)
  rows = jax.NamedSharding(mesh, P('data'))
  whole = jax.NamedSharding(mesh, P())
  got = jax.jit(
    jax.grad(lambda *args: loss(*args, shard)),
    in_shardings=(whole, rows, rows),
    out_shardings=whole,
  )
  np.testing.assert_allclose(
    got(table, _IDS, scores), want(table, _IDS, scores), rtol=1e-5, atol=1e-5
  )


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_gradient_of_an_embedding(mesh, style):
  layer, _ = running.build(
    pax_fiddle.Config(
      Embedding, num_classes=16, input_dims=8, lookup_style=style
    ),
    _IDS,
  )

  def loss(table, ids, scores, shard):
    rows = layer.apply({base_layer.PARAMS: {'emb_var': table}}, ids)
    out = shard(jnp.tanh(shard(rows) @ _TABLE[:8, :8]))
    return jnp.sum(out * scores + jnp.cos(out))

  scores = _RNG.normal(size=(8, 5, 8)).astype(np.float32)
  _check(mesh, loss, _TABLE[:, :8], scores, P('data', 'mdl'))


def test_gradient_of_a_relative_bias(mesh):
  layer, _ = running.build(
    pax_fiddle.Config(attentions.RelativeBias, num_heads=2), _IDS
  )

  def loss(table, ids, scores, shard):
    bias = layer.apply({base_layer.PARAMS: {'wrb': table}}, ids)
    weights = jnp.cos(jnp.arange(scores.size)).reshape(scores.shape)
    return jnp.sum(jax.nn.softmax(shard(scores + bias)) * weights)

  table = jnp.asarray(_RNG.normal(size=(2, 32)), jnp.float32)
  scores = _RNG.normal(size=(8, 2, 5, 5)).astype(np.float32)
  _check(mesh, loss, table, scores, P('data', None, None, 'mdl'))


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_rows_of_a_sharded_embedding(mesh, style):
  table = jax.device_put(_TABLE[:, :8], jax.NamedSharding(mesh, P(None, 'mdl')))
  layer, _ = running.build(
    pax_fiddle.Config(
      Embedding, num_classes=16, input_dims=8, lookup_style=style
    ),
    _IDS,
  )

  @jax.jit
  def rows(table, ids):
    ids = jax.lax.with_sharding_constraint(ids, P('data', 'mdl'))
    found = layer.apply({base_layer.PARAMS: {'emb_var': table}}, ids)
    return jax.lax.with_sharding_constraint(found, P('data', None, 'mdl'))

  np.testing.assert_array_equal(rows(table, _IDS), _TABLE[_IDS, :8])


def test_histogram_of_codes(mesh):
  shard = lambda x: jax.lax.with_sharding_constraint(x, P('data', 'mdl'))

  @jax.jit
  def histogram(ids):
    ids = shard(ids)
    ones = shard(jnp.cos(0.0 * ids))
    return quantizer_objectives.scatter_nd(ids[..., jnp.newaxis], ones, [16])

  want = np.bincount(np.ravel(_IDS), minlength=16)
  np.testing.assert_allclose(histogram(_IDS), want, rtol=1e-6)


def test_lengths_that_divide_cost_nothing(mesh):
  layer, variables = running.build(
    pax_fiddle.Config(base_ops.ArrayLookup), _TABLE, jnp.zeros([8], jnp.int32)
  )
  call = lambda ids: layer.apply(variables, _TABLE, ids)
  text = str(jax.make_jaxpr(lambda ids: call(ids))(_IDS[:, 0]))
  assert 'optimization_barrier' not in text
  text = str(jax.make_jaxpr(lambda ids: call(ids))(_IDS))
  assert 'optimization_barrier' in text


def test_ids_may_be_lists():
  rows = base_layer.gather_rows(_TABLE, [[1, 5], [2, 0]])
  np.testing.assert_array_equal(rows, _TABLE[np.array([[1, 5], [2, 0]])])
