# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Lookups: their operations, values and collectives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from praxis import base_layer
from praxis.layers import embedding_softmax as es
from tests.praxis.layers import running
from tests.testing import collectives, nightly

# Two of them are no class.
_IDS = jnp.asarray([[1, 0, 6, 7], [3, 3, 2, -1]])
_AXES, _MESH_SHAPE = ('replica', 'data', 'mdl'), [1, 4, 2]


def _mesh(shape=_MESH_SHAPE):
  types = (jax.sharding.AxisType.Auto,) * 3
  return jax.make_mesh(tuple(shape), _AXES, axis_types=types)


def _layer(cls, wt, num_classes=7, **fields):
  config = cls.config(
    num_classes=num_classes, input_dims=4, lookup_style='matmul', **fields
  )
  config.weight_split_dims_mapping.wt = wt
  return config.Instantiate()


@pytest.mark.parametrize(
  'cls',
  [
    es.Embedding,
    es.SharedEmbeddingSoftmax,
    es.NClassMajorSharedEmbeddingSoftmax,
  ],
)
def test_no_product_with_all_classes(cls):
  layer = _layer(
    cls,
    ['data', 'mdl'],
    num_classes=8,
    ici_mesh_shape=_MESH_SHAPE,
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  variables = jax.eval_shape(
    lambda: layer.init(jax.random.key(0), _IDS, method='emb_lookup')
  )
  lookup = lambda v: layer.apply(v, _IDS, method='emb_lookup')
  assert 'dot_general' not in str(jax.make_jaxpr(lookup)(variables))


@pytest.mark.parametrize('cls', [es.Embedding, es.SharedEmbeddingSoftmax])
def test_values_and_gradients_are_those_of_the_product(cls):
  layer = _layer(cls, None)
  variables = layer.init(jax.random.key(0), _IDS, method='emb_lookup')
  one_hot = np.asarray(jax.nn.one_hot(_IDS, 7))
  (table,) = [np.asarray(x) for x in jax.tree.leaves(variables) if x.ndim == 2]
  table = table if table.shape == (7, 4) else table.T
  weights = np.random.default_rng(0).normal(size=(2, 4, 4))

  def loss(variables):
    return jnp.sum(layer.apply(variables, _IDS, method='emb_lookup') * weights)

  vectors = layer.apply(variables, _IDS, method='emb_lookup')
  np.testing.assert_allclose(vectors, one_hot @ table, rtol=1e-6)
  (grad,) = [
    np.asarray(x)
    for x in jax.tree.leaves(jax.grad(loss)(variables))
    if x.ndim == 2
  ]
  grad = grad if grad.shape == (7, 4) else grad.T
  want = np.einsum('btv,btd->vd', one_hot, weights)
  np.testing.assert_allclose(grad, want, rtol=1e-5, atol=1e-6)


def test_a_restored_table_is_numpy():
  layer = es.Embedding.config(
    num_classes=3, input_dims=2, lookup_style='matmul'
  ).Instantiate()
  table = np.arange(6, dtype=np.float32).reshape(3, 2)
  got = layer.apply({'params': {'emb_var': table}}, jnp.asarray([2, 0, 3]))
  np.testing.assert_array_equal(got, [[4, 5], [0, 1], [0, 0]])


def test_few_ids_stay_on_their_devices():
  # XLA exchanged rows of the batch (docs/known_issues.md).
  config = es.SharedEmbeddingSoftmax.config(
    num_classes=96,
    input_dims=32,
    lookup_style='matmul',
    ici_mesh_shape=[2, 2, 2],
    mesh_axis_names=_AXES,
  )
  config.weight_split_dims_mapping.wt = ['data', 'mdl']
  config.activation_split_dims_mapping.emb_out_split_dims_mapping = [
    ['replica', 'data'],
    None,
    'mdl',
  ]
  ids = jnp.arange(16)[:, None] * 5
  layer, variables = running.build(config, ids, method='emb_lookup')
  want = running.run(layer, variables, ids, method='emb_lookup')
  with jax.set_mesh(_mesh([2, 2, 2])):
    got = running.run(
      layer,
      jax.tree.map(
        lambda x: jax.device_put(x, PartitionSpec(*('data', 'mdl')[: x.ndim])),
        variables,
      ),
      jax.device_put(ids, PartitionSpec(('replica', 'data'))),
      method='emb_lookup',
    )
  np.testing.assert_allclose(got, want, atol=1e-6)


_SPLITS = [
  (es.Embedding, [None, ('data', 'mdl')]),
  (es.Embedding, ['mdl', 'data']),
  (es.NClassMajorSharedEmbeddingSoftmax, [('data', 'mdl'), None]),
  (es.NClassMajorSharedEmbeddingSoftmax, ['data', 'mdl']),
]


@pytest.mark.parametrize(
  ('cls', 'wt', 'lookup_style'),
  [
    *((*x, ('index', 'matmul')[i % 2]) for i, x in enumerate(_SPLITS)),
    *nightly.cases(
      *((*x, ('matmul', 'index')[i % 2]) for i, x in enumerate(_SPLITS))
    ),
  ],
)
def test_no_device_sums_a_table_of_gradients(cls, wt, lookup_style):
  # With embeddings sharded over 'mdl' XLA summed tables [4096, 8].
  config = cls.config(
    num_classes=4096,
    input_dims=8,
    lookup_style=lookup_style,
    ici_mesh_shape=_MESH_SHAPE,
    mesh_axis_names=_AXES,
  )
  config.weight_split_dims_mapping.wt = wt
  config.activation_split_dims_mapping.emb_out_split_dims_mapping = [
    'data',
    None,
    'mdl',
  ]
  ids = jnp.asarray(np.random.default_rng(0).integers(4096, size=(8, 4)))
  layer, variables = running.build(config, ids, method='emb_lookup')

  def loss(variables, ids):
    vectors = layer.apply(variables, ids, method='emb_lookup')
    return jnp.sum(jnp.sin(vectors) * jnp.arange(8.0))

  want = jax.jit(jax.grad(loss))(variables, ids)
  with jax.set_mesh(_mesh()):
    of_table = wt if cls is es.Embedding else wt[::-1]
    sharded = jax.tree.map(
      lambda x: jax.device_put(
        x, PartitionSpec(*of_table) if x.ndim == 2 else PartitionSpec()
      ),
      variables,
    )
    shardings = jax.tree.map(lambda x: x.sharding, sharded)
    step = jax.jit(jax.grad(loss), out_shardings=shardings)
    args = sharded, jax.device_put(ids, PartitionSpec('data'))
    compiled = step.lower(*args).compile()
    got = compiled(*args)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, want
  )
  sent = collectives.find_collectives(compiled.as_text())
  assert sent
  assert max(c.num_elements for c in sent) < 4096


@pytest.mark.parametrize('do_eval', [False, True])
def test_only_gradients_constrain_the_rows(do_eval):
  config = es.Embedding.config(
    num_classes=8,
    input_dims=4,
    ici_mesh_shape=_MESH_SHAPE,
    mesh_axis_names=_AXES,
  )
  config.weight_split_dims_mapping.wt = ['mdl', 'data']
  ids = jnp.zeros((8, 4), jnp.int32)
  layer, variables = running.build(config, ids, method='emb_lookup')
  hparams = base_layer.JaxContext.HParams(do_eval=do_eval)
  with (
    jax.set_mesh(_mesh()),
    base_layer.JaxContext.new_context(hparams=hparams),
  ):
    jaxpr = jax.make_jaxpr(
      lambda ids: layer.apply(variables, ids, method='emb_lookup')
    )(ids)
  assert ('sharding_constraint' in str(jaxpr)) is not do_eval
