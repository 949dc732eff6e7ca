# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Split-dims mappings, as PartitionSpecs and as constraints."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from praxis import base_layer, py_utils
from praxis.base_layer import WeightHParams

NAMES = ['replica', 'data', 'mdl']


@pytest.mark.parametrize(
  ('mapping', 'want'),
  [
    (None, P()),
    ([None, -1], P(None, None)),
    ([2, 'data'], P('mdl', 'data')),
    ([('replica', 'data'), None], P(('replica', 'data'), None)),
  ],
)
def test_to_partition_spec(mapping, want):
  assert base_layer.to_partition_spec(mapping, NAMES) == want


class _Projection(base_layer.BaseLayer):
  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    extend_step_out: list[str] | None = None


class _Mixin(base_layer.BaseLayer):
  pass


class _Mixed(_Mixin, _Projection):
  pass


def test_a_class_of_two_bases_has_the_fields_of_the_nested_class():
  cfg = _Mixed.config()
  cfg.activation_split_dims_mapping.extend_step_out = ['mdl']
  assert cfg.activation_split_dims_mapping.cls is _Mixed.ActivationSharding
  assert cfg.weight_split_dims_mapping.wt is None


def test_bad_axes_are_refused():
  with pytest.raises(ValueError, match="'expert' is not in mesh_axis_names"):
    base_layer.to_partition_spec(['expert'], NAMES)
  with pytest.raises(ValueError, match='for two dimensions'):
    base_layer.to_partition_spec(['mdl', ('data', 'mdl')], NAMES)


def test_var_partition_specs_put_the_prefix_first():
  w = WeightHParams(
    shape=[4, 4],
    mesh_shape=[1, 2, 2],
    tensor_split_dims_mapping=['data', 'mdl'],
    repeat_prefix=[3],
  )
  specs = base_layer.var_partition_specs({'w': w}, [1, 2, 2], NAMES)
  assert specs == {'w': P(None, 'data', 'mdl')}
  without = base_layer.var_partition_specs({'w': w}, None, None)
  assert without == {'w': P()}


def test_maybe_shard_splits_over_the_mesh():
  mesh = jax.make_mesh(
    (1, 2, 2),
    tuple(NAMES),
    devices=jax.devices()[:4],
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
  )
  shard = jax.jit(lambda x: base_layer.maybe_shard(x, ['data', 'mdl'], NAMES))
  with jax.set_mesh(mesh):
    out = shard(jnp.zeros([4, 4]))
  assert out.sharding.shard_shape(out.shape) == (2, 2)


@pytest.mark.parametrize(
  ('sizes', 'platform', 'is_reversed'),
  [
    ((2, 2, 2), 'cpu', True),
    ((4, 2, 2), 'gpu', True),
    ((2, 2, 2), 'tpu', False),
    ((2, 4, 2), 'cpu', False),
    ((1, 2, 2), 'cpu', False),
    ((2, 1, 1), 'cpu', False),
  ],
)
def test_axes_are_in_the_order_in_which_xla_keeps_rows(
  sizes, platform, is_reversed
):
  axes = ('replica', 'data')
  mesh = jax.sharding.AbstractMesh(sizes, tuple(NAMES))
  with jax.sharding.use_abstract_mesh(mesh), py_utils.tracing_for(platform):
    got = base_layer.axes_of_dimension(axes)
  assert got == (axes[::-1] if is_reversed else axes)
  assert base_layer.axes_of_dimension(axes) == axes


@pytest.mark.parametrize(
  ('matrix_axes', 'wanted'),
  [
    ({'data', 'mdl'}, ('data', 'replica')),
    ({'replica', 'mdl'}, ('replica', 'data')),
    ({'mdl'}, None),
    ({'replica', 'data', 'mdl'}, None),
  ],
)
def test_the_axes_of_weights_come_first(matrix_axes, wanted):
  mesh = jax.sharding.AbstractMesh((2, 2, 2), tuple(NAMES))
  with (
    jax.sharding.use_abstract_mesh(mesh),
    base_layer.matrices_sharded_over(frozenset(matrix_axes)),
  ):
    for axes in (('replica', 'data'), ('data', 'replica')):
      assert base_layer.axes_of_dimension(axes) == (wanted or axes)


def test_maybe_shard_without_a_mesh_is_the_identity():
  x = jnp.zeros([2, 2])
  assert base_layer.maybe_shard(x, ['data', None], None) is x
  assert base_layer.maybe_shard(x, None, NAMES) is x
  assert base_layer.maybe_shard(x, ['data', None], NAMES) is x
  with pytest.raises(ValueError, match='must have 2 entries'):
    base_layer.maybe_shard(x, ['data'], NAMES)


def test_the_context_renames_axes():
  names = {'expert': 'data'}
  hparams = base_layer.JaxContext.HParams(mesh_axes_transpose=names)
  spec = P('expert', ('replica', 'expert'), None, P.UNCONSTRAINED)
  assert base_layer.maybe_transpose_mesh_axes(spec) is spec
  with base_layer.JaxContext.new_context(hparams=hparams):
    renamed = base_layer.maybe_transpose_mesh_axes(spec)
  assert renamed == P('data', ('replica', 'data'), None, P.UNCONSTRAINED)
  assert base_layer.transpose_one_axis(None, names) is None


def test_shards_of_a_dimension():
  layer = base_layer.BaseLayer.config(
    ici_mesh_shape=[1, 2, 3], dcn_mesh_shape=[5, 1, 1], mesh_axis_names=NAMES
  ).Instantiate()
  count = layer.get_shard_count_on_dim
  assert [count(None), count('mdl'), count(('replica', 'mdl'))] == [1, 3, 15]
  with pytest.raises(ValueError, match='expert'):
    count('expert')
  plain = base_layer.BaseLayer.config().Instantiate()
  assert plain.get_shard_count_on_dim('mdl') == 1
