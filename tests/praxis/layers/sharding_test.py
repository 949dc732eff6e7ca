# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Shardings derived by equations, on a mesh of simulated devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from praxis import base_layer
from praxis.layers import sharding


@pytest.fixture(scope='module')
def mesh():
  return jax.make_mesh(
    (2, 2),
    ('x', 'y'),
    devices=jax.devices()[:4],
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )


def test_derive_moves_axes_by_letter():
  assert sharding.derive(('x', 'y'), 'ab->cbda') == (None, 'y', None, 'x')
  assert sharding.derive(None, 'ab->ba') is None
  assert sharding.get_dim_sharding(('x', None), 0) == 'x'
  assert sharding.get_dim_sharding(None, 0) is None
  for eqn in ('ab', 'abc->a', 'ab->a->b'):
    with pytest.raises(ValueError, match='must read'):
      sharding.derive(('x', 'y'), eqn)


@pytest.mark.parametrize(
  ('shape', 's', 'eqn', 'want'),
  [
    ((4, 4), ('x', 'y'), None, (2, 2)),
    ((4, 4), ('x', 'y'), 'ab->ba', (2, 2)),
    ((4, 2, 4), (('x', 'y'), None), 'ab->cba', (4, 2, 1)),
    ((4, 4, 4), ('x', None, 'y'), 'abc->[ab]c', (2, 4, 2)),
    ((4,), ('x', None, 'y'), 'abc->[ab]c', (2,)),
  ],
)
def test_shard(mesh, shape, s, eqn, want):
  shard = jax.jit(lambda x: sharding.shard(x, s, eqn))
  with jax.set_mesh(mesh):
    out = shard(jnp.zeros(shape))
    assert out.sharding.shard_shape(shape) == want
  assert sharding.shard(out, s, eqn) is out


def test_one_dimension_leaves_the_others_to_the_compiler(mesh):
  x = jnp.zeros([4, 4])
  with jax.set_mesh(mesh):
    text = jax.jit(lambda x: sharding.shard_one_dim(x, 'x', 1)).lower(x)
    assert '?}' in text.as_text()
    with pytest.raises(ValueError, match='does not fit an array of 2 dim'):
      sharding.shard(x, ('x',), 'a->a[bcd]')
    with pytest.raises(ValueError, match='must have 2 entries'):
      sharding.shard(x, ('x',))


def test_number_of_shards_knows_renamed_axes(mesh):
  hparams = base_layer.JaxContext.HParams(mesh_axes_transpose={'z': 'x'})
  with jax.set_mesh(mesh):
    count = sharding.num_shards_on_dim
    assert [count(None), count('x'), count(('x', 'y'))] == [1, 2, 4]
    assert count('z') == 1
    with base_layer.JaxContext.new_context(hparams=hparams):
      assert count('z') == 2


def test_axes_that_divide_a_size(mesh):
  with jax.set_mesh(mesh):
    found = {
      size: sharding.dividing_axes(('x', 'y'), size) for size in (8, 6, 3)
    }
    assert found == {8: ('x', 'y'), 6: ('x',), 3: ()}
    assert sharding.dividing_axes('y', 2) == ('y',)
    assert sharding.dividing_axes(None, 2) == ()
    assert sharding.num_devices_along(('x', 'y')) == 4
    assert sharding.num_devices_along(()) == 1
