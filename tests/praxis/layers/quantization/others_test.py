# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Quantized attentions, softmaxes, n-grammers, pipelines; overflow checks."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

from praxis import pax_fiddle
from praxis.layers import attentions, linears, pipeline, quantization
from praxis.layers.attentions import segments
from praxis.layers.quantization import (
  overflow_check,
  quantization_hparams,
  quantize,
)
from praxis.layers.quantization.quantization_hparams import (
  ActQuantizationParams,
  QuantizationMode,
  QuantizationParams,
  QuantizationType,
)
from tests.praxis.layers import running
from tests.testing import nightly

_X = running.normal(2, 4, 8)
_ATTENTION = {'input_dim': 8, 'hidden_dim': 8, 'num_heads': 2}
_IDS = jnp.array([[0, 5, 15], [2, 2, 7]])


@pytest.mark.parametrize('windowed', [True, False])
def test_products_of_attention_are_quantized(windowed):
  mask = attentions.causal_mask(_X)
  args = (_X, _X, _X, mask)
  exact, variables = running.build(
    attentions.DotProductAttention.config(**_ATTENTION), *args
  )
  params = QuantizationParams(
    QuantizationType.AQT, QuantizationMode.TRAINING, ActQuantizationParams()
  )
  cls, fields = quantization.DotProductAttention, {}
  if windowed:
    cls = quantization.DotProductAttentionWithContext
    fields = {'left_context': 99, 'right_context': 99}
  cfg = cls.config(**_ATTENTION, quantization=params, **fields)

  def run(layer):
    return running.run(layer, variables, *args)[0]

  want, got = run(exact), run(cfg.Instantiate(name='q'))
  assert 0 < np.abs(got - want).max() < 0.03 * np.abs(want).max()
  if not windowed:
    params.act_params = None
    got = run(cls.config(**_ATTENTION, quantization=params).Instantiate())
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_quantized_products_have_no_kernel():
  cfg = quantization.DotProductAttention.config(
    **_ATTENTION,
    name='attention',
    quantization=QuantizationParams(
      QuantizationType.AQT, QuantizationMode.TRAINING, ActQuantizationParams()
    ),
    atten_implementation='native',
  )
  ids = jnp.ones(_X.shape[:2], jnp.int32)
  mask = segments.SegmentMask(ids, is_causal=True, dtype=np.dtype(np.float32))
  with pytest.raises(ValueError, match='not support qk_einsum and pv_einsum'):
    cfg.Instantiate().init(jax.random.key(0), _X, _X, _X, mask)


@pytest.mark.parametrize(
  ('style', 'transposed', 'symmetric'),
  nightly.except_for(
    [
      ('index', True, True),
      ('index', False, False),
      ('matmul', True, False),
      ('matmul', False, True),
    ],
    itertools.product(('index', 'matmul'), (True, False), (True, False)),
  ),
)
def test_softmaxes_look_up_what_they_project_with(style, transposed, symmetric):
  cls = quantization.SharedEmbeddingSoftmax
  if transposed:
    cls = quantization.NClassMajorSharedEmbeddingSoftmax
  weight = quantization_hparams.WeightQuantizationParams(
    use_symmetric=symmetric
  )
  layers = [
    cls.config(
      num_classes=16,
      input_dims=8,
      lookup_style=style,
      quantization=QuantizationParams(mode=mode, weight_params=weight),
    )
    for mode in (QuantizationMode.MATERIALIZE, QuantizationMode.INFERENCE)
  ]
  layer, variables = running.build(layers[0], _X, method='get_logits')
  serving = layers[1].Instantiate(name='serving')

  @running.jit
  def run(variables):
    tree = layer.apply(variables, method=layer.quantize_weight)
    return tree, *(
      model.apply(values, x, method=method)
      for model, values in ((layer, variables), (serving, tree))
      for x, method in ((_X, 'get_logits'), (_IDS, 'emb_lookup'))
    )

  tree, logits, rows, served_logits, served_rows = run(variables)
  w = variables['params']
  w = w['w'] if transposed else w['logits_ffn']['linear']['w']
  np.testing.assert_allclose(rows, np.asarray(w).T[np.asarray(_IDS)], rtol=1e-6)
  half = (np.ptp(w, 0) / 255 if not symmetric else np.abs(w).max(0) / 127) / 2
  assert np.abs(served_rows - rows).max() <= half.max() + 1e-6
  bound = half.max() * np.abs(_X).sum(-1).max() + 1e-5
  assert 0 < np.abs(served_logits - logits).max() <= bound
  if transposed:
    assert tree['params']['w'].shape == (16, 8)
    assert tree['params']['bias']['b'].shape == (16,)


@pytest.mark.parametrize(
  'cls',
  [
    quantization.SharedEmbeddingSoftmax,
    quantization.NClassMajorSharedEmbeddingSoftmax,
  ],
)
def test_quantized_softmaxes_check_their_options(cls):
  cfg = cls.config(num_classes=16, input_dims=8, label_smoothing_prob=1.5)
  cfg.quantization = QuantizationParams(mode=QuantizationMode.MATERIALIZE)
  with pytest.raises(ValueError, match='label_smoothing_prob of .* must'):
    running.build(cfg, _X, method='get_logits')


def test_tables_of_ngrammers_are_quantized():
  params = QuantizationParams(mode=QuantizationMode.MATERIALIZE)
  cfg = quantization.Ngrammer.config(
    ngram_vocab_size=32,
    unigram_vocab_size=16,
    ngram_emb_dim=4,
    num_heads=2,
    dim_per_head=8,
    quantization=params,
  )
  embs = running.normal(2, 3, 16)
  layer, variables = running.build(cfg, _IDS, embs)
  serving = cfg.clone().set(quantization=QuantizationParams())
  serving = serving.Instantiate(name='s')

  @running.jit
  def run(variables):
    tree = layer.apply(variables, method=layer.quantize_weight)
    outputs = (
      m.apply(v, _IDS, embs) for m, v in ((serving, tree), (layer, variables))
    )
    return tree, *outputs

  tree, got, want = run(variables)
  for i in range(2):
    table = tree['params'][f'ngram_table_{i}']
    assert table['emb_var'].dtype == jnp.int8
    assert table['emb_var_quantized_scale'].shape == (32,)
  np.testing.assert_allclose(got, want, atol=0.05)


def test_overflows_are_logged(monkeypatch):
  seen = []
  monkeypatch.setattr(logging, 'warning', seen.append)
  cfg = overflow_check.FeedForwardOverflowCheck.config(
    input_dims=8,
    output_dims=4,
    overflow_limits=overflow_check.OverflowLimits(max_val=1e6, min_val=-1e6),
  )
  layer, variables = running.build(cfg, _X)
  apply = running.jit(layer.apply)
  jax.block_until_ready(apply(variables, _X))
  jax.effects_barrier()
  assert not seen
  jax.block_until_ready(apply(variables, 1e8 * _X))
  jax.effects_barrier()
  assert seen[0].startswith('Overflow in: FeedForward, layer, max_val: ')


def test_overflow_checks_are_put_into_a_task():
  from praxis.layers import models, transformer_models, transformers

  repeated = transformers.StackedTransformerRepeated.config()
  lm = transformer_models.TransformerLm.config(stacked_transformer_tpl=repeated)
  task = pax_fiddle.Config(_Task, model=models.LanguageModel.config(lm_tpl=lm))
  checked = overflow_check.add_overflow_checks(task, max_val=5.0)
  layer = checked.model.lm_tpl.stacked_transformer_tpl.block
  layer = layer.transformer_layer_params_tpl
  feed_forward = layer.tr_fflayer_tpl.fflayer_tpl
  assert feed_forward.cls is overflow_check.FeedForwardOverflowCheck
  assert feed_forward.overflow_limits.max_val == 5.0
  proj = layer.tr_atten_tpl.proj_tpl
  assert proj.cls is overflow_check.AttentionProjectionOverflowCheck
  old = repeated.block.transformer_layer_params_tpl.tr_fflayer_tpl
  assert old.fflayer_tpl.cls is linears.FeedForward


@pytest.mark.parametrize('passes', [2, *nightly.cases(1)])
def test_each_stage_of_a_pipeline_is_quantized_alone(passes):
  params = QuantizationParams(
    QuantizationType.PTQ, QuantizationMode.MATERIALIZE
  )
  cls = pipeline.LayerwiseShardablePipelined
  fields = {}
  if passes > 1:
    cls = pipeline.CircularLayerwiseShardablePipelined
    fields = {'circular_repeat': passes}
  stage = quantization.Linear.config(
    input_dims=4, output_dims=4, quantization=params
  )
  stage.weight_split_dims_mapping.wt = [None, 'mdl']
  config = cls.config(
    num_stages=3,
    num_microbatches=3,
    single_stage_body=stage,
    mesh_axis_names=['stage', 'mdl'],
    **fields,
  )
  config.weight_split_dims_mapping.stages = ['stage']
  x = running.normal(6, 4)
  layer, variables = running.build(config, x)
  served = config.clone()
  quantize.set_inference_mode(served)
  served, declared = running.build(served, x)

  tree = layer.apply(variables, method=layer.quantize_weight)
  assert _shapes(tree) == _shapes(declared)
  w = np.asarray(variables['params']['body']['w'])
  scale = np.abs(w).max(-2) / 127
  got = tree['params']['body']
  np.testing.assert_allclose(got['w_quantized_scale'], scale, rtol=1e-5)
  rounded = got['w'] * got['w_quantized_scale'][..., np.newaxis, :]
  np.testing.assert_allclose(rounded, w, atol=np.max(scale) * 0.51)
  np.testing.assert_allclose(
    running.jit(served.apply)(tree, x),
    running.jit(layer.apply)({'params': {'body': {'w': rounded}}}, x),
    atol=1e-5,
  )
  specs = layer.apply(variables, method=layer.quantized_partition_specs)
  leading = (None, 'stage') if passes > 1 else ('stage',)
  assert {k: v.meta for k, v in specs['params']['body'].items()} == {
    'w': jax.sharding.PartitionSpec(*leading, None, 'mdl'),
    'w_quantized_scale': jax.sharding.PartitionSpec(*leading, 'mdl'),
  }


def _shapes(tree):
  return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


class _Task(linears.Linear):
  """Something with a model."""

  model: pax_fiddle.Config = pax_fiddle.template_field(None)
