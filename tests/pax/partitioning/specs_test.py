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
  assert specs.fit(spec, shape, mesh) == wanted
  sharding = jax.sharding.NamedSharding(mesh, specs.fit(spec, shape, mesh))
  jax.device_put(np.zeros(shape), sharding)


def test_uneven_variables_are_logged_by_name(mesh, caplog):
  shapes = {'w': jax.ShapeDtypeStruct((4, 7), np.float32)}
  made = specs.state_shardings({'w': P('data', 'mdl')}, shapes, mesh)
  assert made['w'].sharding.spec == P('data', None)
  assert "['w'] (4, 7)" in caplog.text
  caplog.clear()
  shapes = {'w': jax.ShapeDtypeStruct((4, 8), np.float32)}
  specs.state_shardings({'w': P(('data',), 'mdl')}, shapes, mesh)
  assert not caplog.text


def test_batch_spec():
  axes = ('replica', 'data', 'mdl')
  mapping = NestedMap(map_2d=(('replica', 'data'), None))
  assert specs.batch_spec(mapping, 2, axes) == P(('replica', 'data'), None)
  assert specs.batch_spec(mapping, 1, axes) == P(axes)
  assert specs.batch_spec(None, 3, axes) == P(axes)
  assert specs.batch_spec(mapping, 0, axes) == P()
