# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Whole language models: float, materialized, served from integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import quantization, transformer_models, transformers
from praxis.layers.quantization import quantize, utils
from praxis.layers.quantization.quantization_hparams import (
  QuantizationMode,
  QuantizationType,
  TransformerLayer,
)
from tests.praxis.layers import running
from tests.testing import nightly

Config = pax_fiddle.Config
_IDS = jnp.arange(8).reshape(2, 4) * 5 % 16
_PADS = jnp.zeros((2, 4))


def _lm(repeated=True):
  layer = transformers.StackedTransformer.config(
    num_layers=1, model_dims=16, hidden_dims=32, num_heads=2, dim_per_head=8
  )
  atten = layer.transformer_layer_params_tpl.tr_atten_tpl
  atten.set(combine_qkv=True, use_bias=False)
  lm = transformer_models.TransformerLm.config(
    name='lm', model_dims=16, vocab_size=16, fprop_dtype=jnp.float32
  )
  lm.stacked_transformer_tpl = layer
  if repeated:
    lm.stacked_transformer_tpl = transformers.StackedTransformerRepeated.config(
      block=layer, x_times=2
    )
  return lm


def _logits(layer, variables):
  return layer.apply(variables, _IDS, _PADS).logits


def test_the_float_model_of_a_served_one():
  lm = _lm()
  with pytest.raises(ValueError, match='got none; decorate the experiment'):
    quantize.set_materialize_mode(lm)
  quantize.set_transformer_quantization(lm, mode=QuantizationMode.TRAINING)
  with pytest.raises(ValueError, match='INFERENCE, got none'):
    quantize.set_materialize_mode(lm)
  quantize.set_inference_mode(lm)
  quantize.set_materialize_mode(lm)
  want = _lm()
  quantize.set_transformer_quantization(want, mode=QuantizationMode.MATERIALIZE)
  assert lm == want


@pytest.mark.parametrize('bits', [4, *nightly.cases(8)])
def test_a_float_model_is_served_from_integers(bits):
  exact, variables = running.build(_lm(), _IDS, _PADS)
  materialize = _lm()
  quantize.set_transformer_quantization(
    materialize,
    mode=QuantizationMode.MATERIALIZE,
    num_bits=bits,
    quantize_embedding_softmax=True,
  )
  serve = materialize.clone()
  quantize.set_inference_mode(serve)
  materialize = materialize.set(name='lm').Instantiate()
  serve = serve.set(name='lm').Instantiate()

  @running.jit
  def run(variables):
    tree = materialize.apply(variables, method=materialize.quantize_weight)
    nudged = _nudged(variables, tree)
    return tree, *(
      _logits(*pair)
      for pair in ((exact, variables), (exact, nudged), (serve, tree))
    )

  with base_layer.JaxContext.new_context(
    hparams=base_layer.JaxContext.HParams(do_eval=True)
  ):
    tree, want, rounded, got = run(variables)
    specs = materialize.apply(
      variables, method=materialize.quantized_partition_specs
    )
    declared = serve.abstract_init_with_metadata(_IDS, _PADS)
  # Exactly the float model with weights rounded to units of their scales ...
  np.testing.assert_allclose(got, rounded, atol=1e-4)
  # ... which is not what it was.
  assert 0 < np.abs(got - want).max() < np.abs(want).max()
  is_hparams = lambda x: isinstance(x, base_layer.WeightHParams)
  same = jax.tree.map(
    lambda hp, x: (hp.full_shape, hp.dtype) == (x.shape, x.dtype),
    declared,
    tree,
    is_leaf=is_hparams,
  )
  assert all(jax.tree.leaves(same))
  is_spec = lambda x: isinstance(x, base_layer.BoxedPartitionSpec)
  assert jax.tree.structure(specs, is_leaf=is_spec) == jax.tree.structure(tree)
  repeated = tree['params']['transformer']['repeat']['sub']['x_layers_0']
  qkv = repeated['self_attention']['combined_qkv']
  rows = {8: 16, 4: 2}[bits]
  assert qkv['w'].shape == (2, 3, rows, 2, 8)
  assert qkv['w'].dtype == {8: jnp.int8, 4: jnp.int32}[bits]
  assert qkv['w_quantized_scale'].shape == (2, 3, 2, 8)


# What the weights of these layers contract.
_CONTRACTED = {'linear': (-2,), 'combined_qkv': (-3,), 'post': (-2, -1)}


def _nudged(floats, quantized, parent=''):
  """Returns float variables with each quantized weight rounded by hand."""
  out = {}
  for name, value in floats.items():
    scale = quantized.get(f'{name}_quantized_scale')
    if isinstance(value, dict):
      out[name] = _nudged(value, quantized[name], name)
    elif scale is None:
      out[name] = value
    else:
      unit = jnp.expand_dims(scale, _CONTRACTED[parent])
      out[name] = jnp.round(value / unit) * unit
  return out


def test_parts_can_have_precisions_of_their_own():
  lm = _lm(repeated=False)
  quantize.set_transformer_mixed_precision_quantization(
    lm,
    num_bits={TransformerLayer.LINEAR: 4, TransformerLayer.ATTENTION: 8},
    sub_channel_blocksize={TransformerLayer.LINEAR: 8},
    dtype={TransformerLayer.LINEAR: jnp.int4},
  )
  layer = lm.stacked_transformer_tpl.transformer_layer_params_tpl
  linear = layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl
  assert linear.cls is quantization.Linear
  params = linear.quantization.weight_params
  assert (params.precision, params.block_size) == (4, 8)
  assert not params.use_int4_packed_weights
  proj = layer.tr_atten_tpl.combined_qkv_proj_tpl
  assert proj.quantization.weight_params.precision == 8
  assert not hasattr(lm.softmax_tpl, 'quantization')


def test_decorators_quantize_the_models_of_experiments():
  class Experiment:
    def task(self):
      return Config(_Task, model=_lm())

  decorate = quantize.for_transformer(
    num_bits=4,
    quantization_type=QuantizationType.AQT,
    linear_only=True,
    block_size=8,
  )
  quantized = decorate(Experiment)
  assert quantized.__name__ == 'Experiment'
  found = utils.find_target_tpl(quantized().task(), quantization.Linear)
  assert found
  for linear in found:
    assert linear.quantization.mode == QuantizationMode.TRAINING
    assert linear.quantization.weight_params.block_size == 8
  assert not utils.find_target_tpl(
    quantized().task(), quantization.AttentionProjection
  )
  with pytest.raises(ValueError, match='num_bits must be one of'):
    quantize.for_transformer(num_bits=5)
  bad = quantize.for_transformer(use_symetric=True)
  with pytest.raises(TypeError, match='use_symetric'):
    bad(Experiment)().task()


class _Task(base_layer.BaseLayer):
  """Something with a model."""

  model: Config = pax_fiddle.template_field(None)


def test_settings_of_activations_go_together():
  with pytest.raises(ValueError, match='must both be set'):
    quantize.set_transformer_quantization(_lm(), weight_quant_only=False)
  with pytest.raises(ValueError, match='must both be set'):
    quantize.set_transformer_quantization(_lm(), num_bits_act=8)
