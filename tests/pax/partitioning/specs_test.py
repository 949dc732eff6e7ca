# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Specs are made to fit their shapes, and batches are split as mapped."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from pax.partitioning import specs
from praxis.pytypes import NestedMap

P = PartitionSpec


@pytest.fixture(scope='module')
def mesh():
  devices = np.asarray(jax.devices()).reshape(2, 2, 2)
  return Mesh(devices, ('replica', 'data', 'mdl'))


@pytest.mark.parametrize(
  ('spec', 'shape', 'wanted'),
  [
    (P('data', 'mdl'), (4, 6), P('data', 'mdl')),
    (P('data', 'mdl'), (4, 7), P('data', None)),
    (P(('replica', 'data'), None), (8, 3), P(('replica', 'data'), None)),
    (P(('replica', 'data'), None), (6, 3), P('replica', None)),
    (P(('replica', 'data')), (5,), P(None)),
    (P(None, 'mdl'), (3, 1), P(None, None)),
    (P(), (3,), P()),
  ],
)
def test_fit_drops_the_last_axes_that_do_not_divide(mesh, spec, shape, wanted):
  assert specs.drop_uneven_axes(spec, shape, mesh) == wanted
  sharding = jax.sharding.NamedSharding(
    mesh, specs.drop_uneven_axes(spec, shape, mesh)
  )
  jax.device_put(np.zeros(shape), sharding)


@pytest.mark.parametrize(
  ('spec', 'shape', 'wanted'),
  [
    # What divides stays; what does not goes where it does, the largest first.
    (P('data', 'mdl'), (4, 6), P('data', 'mdl')),
    (P('mdl', 'data'), (7, 12), P(None, ('data', 'mdl'))),
    (P('mdl', None, None), (7, 4, 8), P(None, None, 'mdl')),
    (P(('replica', 'data'), 'mdl'), (6, 4), P('replica', ('mdl', 'data'))),
    # What divides nothing is copied.
    (P('mdl', 'data'), (7, 2), P(None, 'data')),
    (P('mdl'), (7,), P(None)),
  ],
)
def test_stored_arrays_are_split_as_often(mesh, spec, shape, wanted):
  assert specs.storage_spec(spec, shape, mesh) == wanted
  jax.device_put(np.zeros(shape), jax.sharding.NamedSharding(mesh, wanted))


def test_copies_of_variables_are_logged_by_name(mesh, caplog):
  shapes = {'w': jax.ShapeDtypeStruct((7, 2), np.float32)}
  made = specs.state_shardings({'w': P('mdl', 'data')}, shapes, mesh)
  assert made['w'].sharding.spec == P(None, 'data')
  assert "['w'] (7, 2)" in caplog.text
  caplog.clear()
  for shape in ((4, 8), (7, 4)):
    shapes = {'w': jax.ShapeDtypeStruct(shape, np.float32)}
    specs.state_shardings({'w': P(('data',), 'mdl')}, shapes, mesh)
  assert not caplog.text


def test_steps_split_unevenly(mesh):
  def step(tree):
    tree = specs.constrain_uneven(tree, {'a': P('mdl'), 'b': P('mdl')}, mesh)
    return jax.tree.map(lambda x: x + 1.0, tree)

  tree = {'a': np.zeros(7), 'b': np.zeros(8)}
  text = jax.jit(step).lower(tree).as_text()
  # The compiler splits what is even by itself.
  assert text.count('sharding_constraint') == 1
  jax.tree.map(np.testing.assert_array_equal, jax.jit(step)(tree), {
    'a': np.ones(7), 'b': np.ones(8)
  })  # fmt: skip


def test_axes_that_shard_matrices(mesh):
  found = specs.matrix_axes(
    {
      'matrix': P('data', None, 'mdl'),
      'both on one dimension': P(('replica', 'data'), 'mdl'),
      'a vector': P('replica'),
    },
    mesh,
  )
  assert found == {'data', 'mdl'}


def test_batch_spec():
  axes = ('replica', 'data', 'mdl')
  mapping = NestedMap(map_2d=(('replica', 'data'), None))
  assert specs.batch_spec(mapping, 2, axes) == P(('replica', 'data'), None)
  assert specs.batch_spec(mapping, 1, axes) == P(axes)
  assert specs.batch_spec(None, 3, axes) == P(axes)
  assert specs.batch_spec(mapping, 0, axes) == P()
  with pytest.raises(ValueError, match='map_1d must have at most 1 entries'):
    specs.batch_spec({'map_1d': ('data', None)}, 1, axes)
