# bazel: size=medium
# SPDX-License-Identifier: Apache-2.0
"""Quantized layers with low-rank updates add them to their outputs."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers import low_rank_adaptation as float_adaptation
from praxis.layers import transformers
from praxis.layers.quantization import (
  attentions,
  linears,
  low_rank_adaptation,
  quantization_hparams,
)
from praxis.layers.quantization.quantize import layer_configs
from tests.praxis.layers import running
from tests.testing import nightly

# Packed in words of eight numbers of 4 bits.
_D, _N, _H, _R = 8, 2, 3, 2
_HEADS = {'input_dim': _D, 'num_heads': _N, 'dim_per_head': _H}
_X = running.normal(2, 5, _D)
_Y = running.normal(2, 5, _N, _H)

# Layer, that without updates, fields, inputs, and the shape of outputs.
_CASES = {
  'linear': (
    low_rank_adaptation.AdaptedLinear,
    linears.Linear,
    {'input_dims': _D, 'output_dims': 6},
    _X,
  ),
  'to one head': (
    low_rank_adaptation.AdaptedOneHeadedAttentionProjection,
    attentions.OneHeadedAttentionProjection,
    {'input_dim': _D, 'output_dim': _H},
    _X,
  ),
  'to heads': (
    low_rank_adaptation.AdaptedAttentionProjection,
    attentions.AttentionProjection,
    _HEADS,
    _X,
  ),
  'from heads': (
    low_rank_adaptation.AdaptedAttentionProjection,
    attentions.AttentionProjection,
    {**_HEADS, 'is_output_projection': True},
    _Y,
  ),
  'queries, keys, values': (
    low_rank_adaptation.AdaptedCombinedQKVProjectionLayer,
    attentions.CombinedQKVProjectionLayer,
    _HEADS,
    _X,
  ),
}


def _quantization(
  num_bits, mode=quantization_hparams.QuantizationMode.INFERENCE
):
  return quantization_hparams.QuantizationParams(
    quantization_type=quantization_hparams.QuantizationType.PTQ,
    mode=mode,
    weight_params=quantization_hparams.WeightQuantizationParams(
      precision=num_bits
    ),
  )


@pytest.mark.parametrize(
  ('name', 'num_bits'),
  nightly.except_for(
    [(name, (4, 8)[i % 2]) for i, name in enumerate(_CASES)],
    itertools.product(_CASES, (4, 8)),
  ),
)
def test_outputs_are_those_of_integers_and_the_update(name, num_bits):
  cls, plain, fields, inputs = _CASES[name]
  fields = {**fields, 'quantization': _quantization(num_bits)}
  layer, variables = running.build(
    cls.config(**fields, lora_rank=_R, lora_alpha=5.0), inputs
  )
  scale = variables.pop('non_trainable')['lora_scale']
  params = dict(variables['params'])
  a, b = (np.asarray(params.pop(f'lora_{x}')) for x in 'ab')
  assert np.issubdtype(params['w'].dtype, np.integer)
  integers = np.random.default_rng(0).integers(-100, 100, params['w'].shape)
  params['w'] = integers.astype(params['w'].dtype)
  other = plain.config(**fields).Instantiate()

  @running.jit
  def both(params, a, b):
    updated = {**params, 'lora_a': a, 'lora_b': b}
    collections = {'params': updated, 'non_trainable': {'lora_scale': scale}}
    return layer.apply(collections, inputs), other.apply(
      {'params': params}, inputs
    )

  got, without = both(params, a, b)
  rows = inputs.reshape(10, -1)
  products = rows @ a @ np.swapaxes(b, -1, -2)
  # One for each of queries, keys and values.
  updates = [products] if products.ndim == 2 else list(products)
  for x, y, update in zip(
    jax.tree.leaves(got), jax.tree.leaves(without), updates, strict=True
  ):
    np.testing.assert_allclose(
      x - y, (scale * update).reshape(x.shape), rtol=1e-4, atol=1e-4
    )


def test_quantized_transformers_keep_their_updates():
  layer_p = pax_fiddle.Config(transformers.Transformer)
  for tpl in (layer_p.tr_atten_tpl, layer_p.tr_fflayer_tpl):
    float_adaptation.add_updates(tpl, lora_rank=_R, lora_alpha=5.0)
  params = _quantization(8)
  layer_configs.quantize_transformer_layer_weights(
    layer_p, params.quantization_type, params.mode, params.weight_params
  )
  for tpl, cls in (
    (
      layer_p.tr_atten_tpl.proj_tpl,
      low_rank_adaptation.AdaptedAttentionProjection,
    ),
    (
      layer_p.tr_atten_tpl.combined_qkv_proj_tpl,
      low_rank_adaptation.AdaptedCombinedQKVProjectionLayer,
    ),
    (
      layer_p.tr_fflayer_tpl.fflayer_tpl.linear_tpl,
      low_rank_adaptation.AdaptedLinear,
    ),
  ):
    assert tpl.cls is cls
    assert (tpl.lora_rank, tpl.lora_alpha) == (_R, 5.0)


def test_integers_have_no_magnitudes():
  layer_p = low_rank_adaptation.AdaptedLinear.config(
    input_dims=_D, output_dims=6, lora_rank=_R, use_dora=True
  )
  with pytest.raises(
    ValueError, match='must have use_dora=False, as the norms'
  ):
    running.build(layer_p.set(quantization=_quantization(8)), _X)


def test_quantize_weight_keeps_the_factors():
  materialize = quantization_hparams.QuantizationMode.MATERIALIZE
  fields = {'input_dims': _D, 'output_dims': 6, 'lora_rank': _R}
  layer, variables = running.build(
    low_rank_adaptation.AdaptedLinear.config(
      **fields, lora_alpha=5.0, quantization=_quantization(8, materialize)
    ),
    _X,
  )
  served = low_rank_adaptation.AdaptedLinear.config(
    **fields, lora_alpha=5.0, quantization=_quantization(8)
  ).Instantiate()
  quantized, _ = layer.apply(variables, mutable=[], method='quantize_weight')
  assert quantized['params']['w'].dtype == np.int8
  got = served.apply(quantized, _X)
  np.testing.assert_allclose(got, layer.apply(variables, _X), atol=0.05)
  for x in 'ab':
    np.testing.assert_array_equal(
      quantized['params'][f'lora_{x}'], variables['params'][f'lora_{x}']
    )
