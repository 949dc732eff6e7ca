# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Configs of GLaM and Grok: variables, numbers of layers, and what was lost."""

from __future__ import annotations

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import activations, glam, grok, transformers
from praxis.layers.injection import fp8_nvidia_gpu
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing import nightly

_EXPERTS = {
  'moe': True,
  'e_dim': 3,
  'c_dim': 4,
  'moe_hidden_dim': 10,
  'attention_extra_logit': 0.5,
  'atten_logit_cap': 20.0,
}


def _glam(**options):
  return glam.GlamUniTransformerLmHParams(
    16, 8, 12, 2, 4, **{'num_transformer_layers': 4, **_EXPERTS, **options}
  )


def _grok(**options):
  return grok.GrokUniTransformerLmHParams(
    16, 8, 12, 4, 2, 4, **{'num_transformer_layers': 2, **_EXPERTS, **options}
  )


def _call():
  ids = jnp.asarray([[1, 2, 3, 4], [5, 6, 7, 0]])
  return (ids, jnp.zeros(ids.shape)), {
    'labels': NestedMap(class_ids=ids, class_weights=jnp.ones(ids.shape)),
    'segment_ids': jnp.asarray([[1, 1, 2, 2], [1, 1, 1, 0]]),
    'segment_pos': jnp.asarray([[0, 1, 0, 1], [0, 1, 2, 0]]),
  }


def _shapes(cfg):
  args, kwargs = _call()
  layer = cfg.clone().set(name='lm').Instantiate()
  tree = layer.abstract_init_with_metadata(*args, **kwargs)['params']
  pairs, _ = jax.tree_util.tree_flatten_with_path(
    tree, is_leaf=lambda x: isinstance(x, base_layer.WeightHParams)
  )
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): (
      tuple(w.repeat_prefix or ()) + tuple(w.shape)
    )
    for path, w in pairs
  }


def test_glam_has_experts_in_every_second_layer():
  got = _shapes(_glam())
  block = 'transformer/repeat/sub/x_layers_'
  ff = 'ff_layer'
  want = {
    'final_ln/scale': (8,),
    'softmax/embedding/linear/w': got.get('softmax/embedding/linear/w'),
    f'{block}0/{ff}/gate': (2, 8, 3),
    f'{block}0/{ff}/wi_0': (2, 3, 8, 10),
    f'{block}0/{ff}/wo_0': (2, 3, 10, 8),
    f'{block}1/{ff}/ffn_layer1/linear/w': (2, 8, 12),
    f'{block}1/{ff}/ffn_layer1_gate/linear/w': (2, 8, 12),
    f'{block}1/{ff}/ffn_layer2/linear/w': (2, 12, 8),
  }
  for i in range(2):
    attention = f'{block}{i}/self_attention'
    want |= {f'{attention}/{x}/w': (2, 8, 8) for x in ('query', 'key', 'value')}
    want |= {
      f'{attention}/post/w': (2, 8, 8),
      f'{attention}/relative_bias/wrb': (2, 2, 32),
      f'{block}{i}/layer_norm/scale': (2, 8),
      f'{block}{i}/{ff}/layer_norm/scale': (2, 8),
    }
  table = {name for name in got if name.startswith('softmax/')}
  assert len(table) == 1
  want = {k: v for k, v in want.items() if not k.startswith('softmax/')}
  assert {k: v for k, v in got.items() if k not in table} == want


def test_grok_has_experts_in_every_layer_and_fewer_heads_of_keys():
  got = _shapes(_grok())
  layer = 'transformer/repeat/sub/x_layers_0'
  assert not any('x_layers_1' in name for name in got)
  for name, shape in {
    'ff_layer/wi_gate_0': (2, 3, 8, 10),
    'self_attention/query/w': (2, 8, 4, 4),
    'self_attention/key/w': (2, 8, 2, 4),
    'self_attention/key/b': (2, 2, 4),
    'self_attention/relative_bias/wrb': (2, 4, 32),
  }.items():
    assert got[f'{layer}/{name}'] == shape


def test_experts_of_grok_have_the_activation_and_those_of_glam_are_plain_relu():
  options = {'ffn_activation_cls': activations.SiLU}
  experts = _grok(**options).stacked_transformer_tpl.block.moe_layer_tpl
  assert fdl.get_callable(experts.activation_tpl) is activations.SiLU
  assert experts.use_gated_activation
  block = _glam(**options).stacked_transformer_tpl.block
  assert block.moe_layer_tpl.activation_tpl.cls is activations.ReLU
  assert not block.moe_layer_tpl.use_gated_activation
  dense = block.transformer_layer_params_tpl.tr_fflayer_tpl
  assert dense.activation_tpl.cls is activations.SiLU
  assert dense.use_gated_activation


def test_glam_takes_the_gating_function_of_dense_experts():
  assert _shapes(_glam(moe_gating_func='dense_top2'))


@pytest.mark.parametrize('build', [_glam, _grok])
def test_attention_keeps_what_is_set(build):
  """Also Grok's, of another class."""
  layer = build().stacked_transformer_tpl.block.transformer_layer_params_tpl
  attention = layer.tr_atten_tpl
  assert attention.attention_extra_logit == 0.5
  assert attention.atten_logit_cap == 20.0
  assert attention.internal_gshard_gaussian_init
  assert attention.output_proj_use_nhd_shape
  assert not attention.internal_enable_query_scale
  assert attention.relative_bias_tpl is not None


def test_the_gating_function_arrives_at_experts():
  cfg = _glam(moe_gating_func='expert_choice_v2', repeat=False)
  block = cfg.stacked_transformer_tpl.clone().set(name='block')
  layers = [block.Instantiate()._layer_tpl(i) for i in range(4)]
  assert [x.tr_fflayer_tpl.cls for x in layers] == [
    transformers.TransformerFeedForwardMoe,
    transformers.TransformerFeedForward,
  ] * 2
  assert layers[0].tr_fflayer_tpl.gating_func == 'expert_choice_v2'
  assert layers[0].tr_fflayer_tpl.expert_capacity_dim == 4


def test_stages_of_pipelines_and_plain_stacks():
  for build, layers, experts in ((_glam, 4, [0, 2]), (_grok, 6, [0, 1, 2])):
    cfg = build(
      num_transformer_layers=2 * layers if build is _glam else layers,
      num_pipeline_stages=2,
      num_pipeline_microbatches=4,
    )
    stacked = cfg.stacked_transformer_tpl
    assert stacked.cls is transformers.PipelinedTransformer
    assert stacked.num_pipeline_microbatches == 4
    assert list(stacked.pipeline_stage.moe_layers) == experts
  dense = _glam(moe=False, repeat=False).stacked_transformer_tpl
  assert dense.num_layers == 4 and dense.moe_layers is None
  with pytest.raises(ValueError, match='multiple of layers of a block, got 3'):
    _glam(num_transformer_layers=3)
  with pytest.raises(ValueError, match='multiple of num_pipeline_stages'):
    _grok(num_transformer_layers=3, num_pipeline_stages=2)
  with pytest.raises(TypeError, match='num_expert'):
    _glam(num_expert=3)


def test_eight_bit_products():
  block = _grok(use_fp8=True).stacked_transformer_tpl.block
  einsum = pax_fiddle.Config(fp8_nvidia_gpu.Fp8EinsumOp)
  layer = block.transformer_layer_params_tpl
  assert layer.tr_atten_tpl.proj_tpl.einsum_tpl == einsum
  assert block.moe_layer_tpl.einsum_tpl == einsum
  gated = block.moe_layer_tpl.einsum_gated_tpl
  assert gated.cls is fp8_nvidia_gpu.Fp8EinsumGatedOp


@pytest.mark.parametrize('build', [_grok, *nightly.cases(_glam)])
def test_models_lose_and_learn(build):
  """One block, which is not in a loop: that compiles faster."""
  args, kwargs = _call()
  cfg = build()
  cfg.stacked_transformer_tpl = cfg.stacked_transformer_tpl.block
  layer, variables = running.build(cfg, *args, **kwargs)

  def loss(params):
    out, _ = layer.apply(
      {'params': params}, *args, **kwargs, mutable=['aux_loss']
    )
    return out.total_loss

  value, gradient = running.jit(jax.value_and_grad(loss))(variables['params'])
  assert np.isfinite(value)
  largest = jax.tree.map(lambda g: float(jnp.abs(g).max()), gradient)
  block = largest['transformer']['x_layers_0']
  assert min(jax.tree.leaves(block['ff_layer'])) > 0
