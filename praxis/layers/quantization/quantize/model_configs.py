# SPDX-License-Identifier: Apache-2.0
"""Quantization of the Config of a model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from fiddle import daglish

from praxis import pax_fiddle
from praxis.layers import ngrammer, transformer_models, transformers
from praxis.layers.quantization import convolutions, quantization_hparams, utils
from praxis.layers.quantization import ngrammer as quantized_ngrammer
from praxis.layers.quantization.quantize import layer_configs

ActQuantizationParams = quantization_hparams.ActQuantizationParams
Config = pax_fiddle.Config
QuantizationMode = quantization_hparams.QuantizationMode
QuantizationParams = quantization_hparams.QuantizationParams
QuantizationType = quantization_hparams.QuantizationType
TransformerLayer = quantization_hparams.TransformerLayer
WeightQuantizationParams = quantization_hparams.WeightQuantizationParams

_MODELS = (
  transformer_models.TransformerLm,
  transformer_models.TransformerEncoderDecoder,
)
_SOFTMAXES = ('softmax_tpl',)
_EMBEDDINGS = (
  'separate_embedding_tpl',
  'encoder_embedding_tpl',
  'decoder_embedding_tpl',
)
_NGRAMMER_CLASSES = (
  (ngrammer.Ngrammer, quantized_ngrammer.Ngrammer),
  (ngrammer.VQNgrammer, quantized_ngrammer.VQNgrammer),
)
_NGRAMMERS = ('ngrammer_tpl', 'encoder_ngrammer_tpl', 'decoder_ngrammer_tpl')


def set_transformer_quantization(
  config: Config,
  quantization_type: QuantizationType = QuantizationType.PTQ,
  mode: QuantizationMode = QuantizationMode.INFERENCE,
  num_bits: int = 8,
  linear_only: bool = False,
  use_symmetric: bool = True,
  rank: int = -1,
  *,
  weight_quant_only: bool = True,
  quantize_self_attention: bool = True,
  quantize_cross_attention: bool = True,
  quantize_embedding_softmax: bool = False,
  transposed_embedding_softmax: bool = False,
  softmax_only: bool = True,
  quantize_ngrammer_embedding: bool = False,
  num_bits_act: int | None = None,
  use_symmetric_act: bool | None = None,
  skip_transformers: list[str] | None = None,
  optimize_clipping_per_channel: bool | None = None,
  **weight_options: Any,
) -> None:
  """Quantizes the transformers of a model's Config in place.

  Args:
    config: the Config of the model.
    quantization_type: the quantization method.
    mode: the phase that the model is built for.
    num_bits: precision of weights.
    linear_only: whether to leave attentions in float.
    use_symmetric: whether weights have no zero point.
    rank: rank of the factors of linear layers; -1: one matrix.
    weight_quant_only: whether activations stay float.
    quantize_self_attention: whether to quantize self attentions.
    quantize_cross_attention: whether to quantize cross attentions.
    quantize_embedding_softmax: whether to quantize shared softmaxes.
    transposed_embedding_softmax: whether their tables are [classes, dims].
    softmax_only: whether to leave separate embeddings in float.
    quantize_ngrammer_embedding: whether to quantize n-grammers.
    num_bits_act: precision of activations, with weight_quant_only=False.
    use_symmetric_act: whether activations have no zero point, likewise.
    skip_transformers: names of layers that stay float.
    optimize_clipping_per_channel: a field of WeightQuantizationParams.
    **weight_options: further fields of WeightQuantizationParams.
  """
  weight_params = WeightQuantizationParams(
    precision=num_bits,
    use_symmetric=use_symmetric,
    optimize_clipping_per_channel=bool(optimize_clipping_per_channel),
    **weight_options,
  )
  act_params = _act_params(weight_quant_only, num_bits_act, use_symmetric_act)
  for template in utils.find_target_tpl(config, transformers.Transformer):
    if template.name not in (skip_transformers or ()):
      layer_configs.quantize_transformer_layer_weights(
        template,
        quantization_type,
        mode,
        weight_params,
        act_params,
        linear_only,
        rank,
        quantize_self_attention,
        quantize_cross_attention,
      )
  params = QuantizationParams(
    quantization_type, mode, act_params, weight_params
  )
  if quantize_embedding_softmax:
    _quantize_embeddings(
      config, params, transposed_embedding_softmax, softmax_only
    )
  if quantize_ngrammer_embedding:
    _quantize_ngrammers(config, params)


def set_transformer_mixed_precision_quantization(
  config: Config,
  quantization_type: QuantizationType = QuantizationType.PTQ,
  mode: QuantizationMode = QuantizationMode.INFERENCE,
  num_bits: Mapping[TransformerLayer, int] | None = None,
  sub_channel_blocksize: Mapping[TransformerLayer, int] | None = None,
  use_symmetric: Mapping[TransformerLayer, bool] | None = None,
  dtype: Mapping[TransformerLayer, Any] | None = None,
  *,
  default_sub_channel_blocksize: int = 0,
  default_use_symmetric: bool = True,
  default_dtype: Any = jnp.int8,
  transposed_embedding_softmax: bool = False,
  quantize_self_attention: bool = True,
  quantize_cross_attention: bool = True,
) -> None:
  """Quantizes the parts of transformers with separate precisions, in place.

  Args:
    config: the Config of the model.
    quantization_type: the quantization method.
    mode: the phase that the model is built for.
    num_bits: precision of each part; parts without one stay float.
    sub_channel_blocksize: block size of each part.
    use_symmetric: whether a part has no zero points.
    dtype: storage dtype of each part.
    default_sub_channel_blocksize: block size of the other parts.
    default_use_symmetric: use_symmetric of the other parts.
    default_dtype: storage dtype of the other parts.
    transposed_embedding_softmax: whether softmax tables are [classes, dims].
    quantize_self_attention: whether to quantize self attentions.
    quantize_cross_attention: whether to quantize cross attentions.
  """
  bits = num_bits or {}
  settings = {
    'use_symmetric': (use_symmetric or {}, default_use_symmetric),
    'dtype': (dtype or {}, default_dtype),
    'block_size': (sub_channel_blocksize or {}, default_sub_channel_blocksize),
  }

  def params_of(part: TransformerLayer, act: Any = None) -> QuantizationParams:
    return QuantizationParams(
      quantization_type, mode, *_part_params(bits, settings, part, act)
    )

  part = TransformerLayer
  for template in utils.find_target_tpl(config, transformers.Transformer):
    if part.LINEAR in bits:
      layer_configs.quantize_transformer_feed_forward_layer_weights(
        template.tr_fflayer_tpl,
        *_fields(params_of(part.LINEAR, part.LINEAR_ACT)),
      )
    if part.ATTENTION in bits:
      layer_configs.quantize_attention_layer_weights(
        template,
        *_fields(params_of(part.ATTENTION, part.ATTENTION_ACT)),
        quantize_self_attention=quantize_self_attention,
        quantize_cross_attention=quantize_cross_attention,
      )
  if part.EMBEDDING_SOFTMAX in bits:
    params = params_of(part.EMBEDDING_SOFTMAX, part.EMBEDDING_SOFTMAX_ACT)
    _quantize_embeddings(config, params, transposed_embedding_softmax, True)
  if part.EMBEDDING_NGRAMMER in bits:
    _quantize_ngrammers(config, params_of(part.EMBEDDING_NGRAMMER))


def set_diffusion_quantization(
  config: Config,
  target: type,
  quantization_type: QuantizationType = QuantizationType.PTQ,
  mode: QuantizationMode = QuantizationMode.INFERENCE,
  num_bits: int = 8,
  use_symmetric: bool = True,
  weight_quant_only: bool = True,
  dtype: Any = jnp.int8,
) -> None:
  """Quantizes the convolutions `conv_tpl` of all templates of a class.

  Args:
    config: the Config of the model.
    target: the class of the templates.
    quantization_type: the quantization method.
    mode: the phase that the model is built for.
    num_bits: precision of weights and activations.
    use_symmetric: whether weights have no zero point.
    weight_quant_only: whether activations stay float.
    dtype: storage dtype of weights.
  """
  weight = WeightQuantizationParams(
    precision=num_bits, use_symmetric=use_symmetric, dtype=dtype
  )
  act = None if weight_quant_only else ActQuantizationParams(precision=num_bits)
  for template in utils.find_target_tpl(config, target):
    if hasattr(template, 'conv_tpl'):
      params = QuantizationParams(quantization_type, mode, act, weight)
      template.conv_tpl = Config(convolutions.Conv2D, quantization=params)


def set_inference_mode(config: Any) -> None:
  """Sets the mode of every quantized layer in `config` to INFERENCE."""
  for params in _quantizations(config):
    params.mode = QuantizationMode.INFERENCE


def set_materialize_mode(config: Any) -> None:
  """Sets the mode of every layer of mode INFERENCE to MATERIALIZE.

  The model then has the float variables that its method `quantize_weight`
  converts to those of `config`.

  Args:
    config: the Config of a model, which is changed in place.

  Raises:
    ValueError: no layer has mode INFERENCE.
  """
  served = [
    params
    for params in _quantizations(config)
    if params.mode == QuantizationMode.INFERENCE
  ]
  if not served:
    raise ValueError(
      'a model with quantized weights must have layers whose quantization.mode'
      ' is QuantizationMode.INFERENCE, got none; decorate the experiment with'
      ' @quantize.for_transformer(mode=QuantizationMode.INFERENCE, ...)'
    )
  for params in served:
    params.mode = QuantizationMode.MATERIALIZE


def _quantizations(config: Any) -> list[QuantizationParams]:
  """Returns the parameters of the quantized layers in `config`."""
  return [
    node.quantization
    for node, _ in daglish.iterate(config)
    if isinstance(node, pax_fiddle.Config)
    and getattr(node, 'quantization', None) is not None
  ]


def _act_params(
  weight_quant_only: bool, num_bits: int | None, use_symmetric: bool | None
) -> ActQuantizationParams | None:
  if weight_quant_only and num_bits is None and use_symmetric is None:
    return None
  if weight_quant_only or num_bits is None or use_symmetric is None:
    raise ValueError(
      'num_bits_act and use_symmetric_act must both be set with '
      'weight_quant_only=False, and neither with True, got '
      f'{num_bits}, {use_symmetric} and {weight_quant_only}'
    )
  return ActQuantizationParams(precision=num_bits, symmetric=use_symmetric)


def _part_params(
  bits: Mapping[TransformerLayer, int],
  settings: Mapping[str, tuple[Mapping[TransformerLayer, Any], Any]],
  part: TransformerLayer,
  act_part: TransformerLayer | None,
) -> tuple[ActQuantizationParams | None, WeightQuantizationParams]:
  """Returns the quantization of the activations and weights of a part."""

  def setting(name: str, part: TransformerLayer) -> Any:
    values, default = settings[name]
    return values.get(part, default)

  weight = WeightQuantizationParams(
    precision=bits[part],
    use_int4_packed_weights=setting('dtype', part) != jnp.int4,
    **{name: setting(name, part) for name in settings},
  )
  if act_part is None or act_part not in bits:
    return None, weight
  symmetric = setting('use_symmetric', act_part)
  return ActQuantizationParams(bits[act_part], symmetric=symmetric), weight


def _quantize_embeddings(
  config: Config,
  params: QuantizationParams,
  transposed: bool,
  softmax_only: bool,
) -> None:
  fields = _SOFTMAXES if softmax_only else _SOFTMAXES + _EMBEDDINGS
  for template in utils.find_target_tpl(config, _MODELS):
    names = tuple(name for name in fields if hasattr(template, name))
    layer_configs.quantize_embedding_softmax_layer_weights(
      template, names, params, transposed_embedding_softmax=transposed
    )


def _quantize_ngrammers(config: Config, params: QuantizationParams) -> None:
  for template in utils.find_target_tpl(config, _MODELS):
    for name in _NGRAMMERS:
      if getattr(template, name, None) is not None:
        _quantize_ngrammer(getattr(template, name), params)


def _quantize_ngrammer(template: Config, params: QuantizationParams) -> None:
  for plain, quantized in _NGRAMMER_CLASSES:
    if issubclass(template.cls, plain):
      template.cls = quantized
      template.quantization = copy.deepcopy(params)


def _fields(
  params: QuantizationParams,
) -> tuple[
  QuantizationType,
  QuantizationMode,
  WeightQuantizationParams,
  ActQuantizationParams | None,
]:
  return (
    params.quantization_type,
    params.mode,
    params.weight_params,
    params.act_params,
  )
