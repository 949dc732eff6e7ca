# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Sharding helpers: the tables of mappings, and where they arrive."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import embedding_softmax as es
from praxis.layers import transformer_models, transformers
from praxis.layers.transformer_models import model_sharding, stack_configs
from praxis.nested_map import NestedMap
from tests.testing import nightly
from tests.testing.layers import random_variables

_V1 = {'replica_axis': 'replica', 'data_axis': 'data', 'mdl_axis': 'mdl'}
_NAMES = ('replica', 'data', 'mdl')
_BATCH = ('replica', 'data')


def _lm(**fields):
  lm = transformer_models.TransformerLm.config(
    name='lm', model_dims=8, vocab_size=16, **fields
  )
  stack = lm.stacked_transformer_tpl
  for block in stack_configs.stacked_transformers(stack):
    block.set(num_layers=1, hidden_dims=16, num_heads=2)
  return lm


def _set_v1(lm, **kwargs):
  return transformer_models.TransformerLm.set_sharding_params_v1(
    lm,
    ici_mesh_shape=[1, 2, 2],
    mesh_axis_names=_NAMES,
    **{'training_optimized': True} | _V1 | kwargs,
  )


def test_v1_in_training():
  got = model_sharding.Axes(training_optimized=True, **_V1).mappings()
  blf = [_BATCH, None, 'mdl']
  assert got == model_sharding.Mappings(
    w_df=['data', 'mdl'],
    w_dnh=['data', 'mdl', None],
    w_emh=['data', None, 'mdl'],
    w_vd=['mdl', 'data'],
    a_bld=blf,
    a_blf=blf,
    a_blh=blf,
    a_blnh=[_BATCH, None, 'mdl', None],
    a_blv=blf,
    a_egch=['data', None, None, 'mdl'],
    a_egcm=['data', None, None, 'mdl'],
    a_bd=[_BATCH, 'mdl'],
    a_bf=[_BATCH, 'mdl'],
    a_bv=[_BATCH, 'mdl'],
  )


def test_v1_for_serving_with_a_sequence_axis():
  got = model_sharding.Axes(
    training_optimized=False, seq_axis='seq', batch_axes=('data',), **_V1
  ).mappings()
  assert got.a_bld == [('data',), None, None]
  assert got.a_bd == [('data',), None]
  assert got.a_blf == [('data',), 'seq', 'mdl']
  assert got.w_df == [('data', 'seq'), 'mdl']
  assert got.w_vd == ['mdl', ('data', 'seq')]
  assert got.a_egcm == [('data',), None, None, None]


def test_expert_parallelism():
  got = model_sharding.Axes(
    training_optimized=True, data_expert_axis='data_expert', **_V1
  ).mappings()
  data = ('data', 'data_expert')
  batch = ('replica', 'data', 'data_expert')
  assert got.w_df == [data, 'mdl']
  assert got.w_dnh == [data, 'mdl', None]
  assert got.w_vd == ['mdl', data]
  assert got.w_emh == ['data_expert', 'data', 'mdl']
  assert got.a_bld == [batch, None, 'mdl']
  assert got.a_egch == ['data_expert', 'data', None, 'mdl']
  assert got.a_egcm == ['data_expert', _BATCH, None, 'mdl']


def _specs(lm, *, mesh_shape=(1, 2, 2), names=_NAMES):
  ids = jnp.zeros((2, 4), jnp.int32)
  tree = lm.Instantiate().abstract_init_with_metadata(ids, jnp.zeros((2, 4)))
  specs = base_layer.var_partition_specs(tree['params'], mesh_shape, names)
  flat = jax.tree_util.tree_flatten_with_path(specs)[0]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): tuple(spec)
    for path, spec in flat
  }


def test_every_weight_gets_its_mapping():
  specs = _specs(_set_v1(_lm()))
  layer = 'transformer/x_layers_0'
  assert specs[f'{layer}/self_attention/query/w'] == ('data', 'mdl', None)
  assert specs[f'{layer}/self_attention/post/w'] == ('data', 'mdl', None)
  assert specs[f'{layer}/ff_layer/ffn_layer1/linear/w'] == ('data', 'mdl')
  assert specs[f'{layer}/ff_layer/ffn_layer2/linear/w'] == ('mdl', 'data')
  assert specs['softmax/logits_ffn/linear/w'] == ('data', 'mdl')
  assert specs['softmax/logits_ffn/bias/b'] == ('mdl',)


def test_repeated_stacks_have_a_leading_axis():
  block = transformers.StackedTransformer.config()
  lm = _lm(
    stacked_transformer_tpl=transformers.StackedTransformerRepeated.config(
      block=block, x_times=3
    )
  )
  specs = _specs(_set_v1(lm))
  layer = 'transformer/repeat/sub/x_layers_0'
  w = specs[f'{layer}/ff_layer/ffn_layer1/linear/w']
  assert w == (None, 'data', 'mdl')


def test_embeddings_and_positions():
  lm = _lm(
    softmax_tpl=es.NClassMajorSharedEmbeddingSoftmax.config(),
    position_emb_tpl=es.TrainablePositionalEmbedding.config(max_seq_length=16),
  )
  specs = _specs(_set_v1(lm))
  assert lm.softmax_tpl.lookup_style == 'matmul'
  assert specs['softmax/w'] == ('mdl', 'data')
  assert specs['softmax/bias/b'] == ('mdl',)
  assert specs['position_emb/emb_var'] == ('data', 'mdl')

  lm = _lm(
    softmax_tpl=es.FullSoftmax.config(),
    separate_embedding_tpl=es.Embedding.config(),
  )
  specs = _specs(_set_v1(lm))
  assert specs['embedding_lookup/emb_var'] == ('mdl', 'data')
  assert specs['softmax/logits_ffn/linear/w'] == ('data', 'mdl')


def test_inputs_of_layers():
  lm = _lm(
    layer_inputs_tpl=transformer_models.LayerInputs.config(layer_input_dims=4)
  )
  layer = lm.stacked_transformer_tpl.transformer_layer_params_tpl
  layer.layer_input_tpl = transformers.LayerInputBranch.config(
    layer_input_dims=4
  )
  specs = _specs(_set_v1(lm))
  # A lookup is a gather, for no axis shards the vocabulary.
  assert specs['layer_inputs/embedding/emb_var'] == (None, ('data', 'mdl'))
  assert specs['layer_inputs/proj/w'] == ('data', 'mdl')
  branch = 'transformer/x_layers_0/layer_input'
  assert specs[f'{branch}/gate/w'] == ('data', 'mdl')
  assert specs[f'{branch}/proj/w'] == ('mdl', 'data')


def test_custom_mappings_and_experts():
  lm = transformer_models.TransformerLm.set_custom_sharding_params(
    _lm(),
    ici_mesh_shape=[2, 2],
    dcn_mesh_shape=[2, 1],
    mesh_axis_names=['x', 'y'],
    w_emh=['x', None, 'y'],
    a_bld=['x', None, 'y'],
  )
  assert lm.mesh_shape == [4, 2]
  moe = lm.stacked_transformer_tpl.moe_layer_tpl
  assert moe.weight_split_dims_mapping.ehm == ['x', 'y', None]
  assert moe.activation_split_dims_mapping.gsm == ['x', None, 'y']
  with pytest.raises(TypeError, match='w_xy'):
    transformer_models.TransformerLm.set_custom_sharding_params(
      lm, ici_mesh_shape=[1], mesh_axis_names=['x'], w_xy=[]
    )


def test_blocks_descend_into_repeats_and_pipelines():
  block = transformers.StackedTransformer.config(num_layers=3)
  repeated = transformers.StackedTransformerRepeated.config(block=block)
  pipelined = transformers.PipelinedTransformer.config(pipeline_stage=repeated)
  for stack in (block, repeated, pipelined):
    (found,) = stack_configs.stacked_transformers(stack)
    assert found.num_layers == 3


@pytest.mark.parametrize(
  'softmax',
  [
    es.NClassMajorSharedEmbeddingSoftmax,
    es.GShardSharedEmbeddingSoftmax,
    *nightly.cases(es.SharedEmbeddingSoftmax),
  ],
)
def test_losses_are_the_same_on_a_mesh(softmax):
  lm = _lm(softmax_tpl=pax_fiddle.Config(softmax))
  ids = jax.random.randint(jax.random.key(1), (4, 4), 0, 16)
  labels = NestedMap(class_ids=ids, class_weights=jnp.ones(ids.shape))
  variables = random_variables(lm.Instantiate(), ids, jnp.zeros((4, 4)))

  def loss(layer):
    return jax.jit(
      lambda v: layer.apply(v, ids, jnp.zeros((4, 4)), labels).total_loss
    )(variables)

  want = loss(lm.clone().Instantiate())
  mesh = jax.make_mesh(
    (1, 2, 2),
    _NAMES,
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
    devices=jax.devices()[:4],
  )
  with jax.set_mesh(mesh):
    got = loss(_set_v1(lm).Instantiate())
  np.testing.assert_allclose(got, want, rtol=1e-5)
