# SPDX-License-Identifier: Apache-2.0
"""Puts quantised layers into the templates of a transformer layer."""

from __future__ import annotations

import copy

from praxis import pax_fiddle
from praxis.layers import (
  attentions,
  embedding_softmax,
  linears,
  multi_query_attention,
)
from praxis.layers.quantization import attentions as quantized_attentions
from praxis.layers.quantization import (
  embedding_softmax as quantized_embedding_softmax,
)
from praxis.layers.quantization import linears as quantized_linears
from praxis.layers.quantization import (
  multi_query_attention as quantized_multi_query_attention,
)
from praxis.layers.quantization import quantization_hparams

ActQuantizationParams = quantization_hparams.ActQuantizationParams
Config = pax_fiddle.Config
QuantizationMode = quantization_hparams.QuantizationMode
QuantizationParams = quantization_hparams.QuantizationParams
QuantizationType = quantization_hparams.QuantizationType
WeightQuantizationParams = quantization_hparams.WeightQuantizationParams


def quantize_transformer_layer_weights(
  tr_tpl: Config,
  quantization_type: QuantizationType,
  mode: QuantizationMode,
  weight_quantization_params: WeightQuantizationParams,
  act_quantization_params: ActQuantizationParams | None = None,
  linear_only: bool = False,
  rank: int = -1,
  quantize_self_attention: bool = True,
  quantize_cross_attention: bool = True,
) -> None:
  """Quantises the layers of a `Transformer` template.

  The feed-forward layers always, the attentions unless `linear_only`.
  """
  params = (
    quantization_type,
    mode,
    weight_quantization_params,
    act_quantization_params,
  )
  if not linear_only:
    quantize_attention_layer_weights(
      tr_tpl, *params, quantize_self_attention, quantize_cross_attention
    )
  quantize_transformer_feed_forward_layer_weights(
    tr_tpl.tr_fflayer_tpl, *params, rank
  )


def quantize_attention_layer_weights(
  tr_tpl: Config,
  quantization_type: QuantizationType,
  mode: QuantizationMode,
  weight_quantization_params: WeightQuantizationParams,
  act_quantization_params: ActQuantizationParams | None = None,
  quantize_self_attention: bool = True,
  quantize_cross_attention: bool = True,
) -> None:
  """Quantises the projections of the attentions of a `Transformer` template.

  Raises:
    ValueError: an attention is none of the kinds that can be quantised.
  """
  if quantize_cross_attention != quantize_self_attention:
    # What is not given is like the self attention, which may change here.
    if tr_tpl.cross_atten_tpl is None:
      tr_tpl.cross_atten_tpl = tr_tpl.tr_atten_tpl.clone()
  for name, chosen in (
    ('tr_atten_tpl', quantize_self_attention),
    ('cross_atten_tpl', quantize_cross_attention),
  ):
    template = getattr(tr_tpl, name)
    if not chosen or template is None:
      continue
    if issubclass(
      template.cls, multi_query_attention.MultiQueryDotProductAttention
    ):
      quantize = quantize_mq_dot_product_attention_layer_weights
    elif issubclass(template.cls, attentions.DotProductAttention):
      quantize = quantize_dot_product_attention_layer_weights
    else:
      raise ValueError(
        f'{name} must be DotProductAttention or MultiQueryDotProductAttention '
        f'to be quantised, got {template.cls.__name__}; set linear_only=True'
      )
    quantize(
      template,
      quantization_type,
      mode,
      weight_quantization_params,
      act_quantization_params,
    )


def quantize_dot_product_attention_layer_weights(
  attn_tpl: Config,
  quantization_type: QuantizationType,
  mode: QuantizationMode,
  weight_quantization_params: WeightQuantizationParams,
  act_quantization_params: ActQuantizationParams | None = None,
) -> None:
  """Quantises the projections of a `DotProductAttention` template."""
  params = QuantizationParams(
    quantization_type, mode, act_quantization_params, weight_quantization_params
  )
  _quantize(
    attn_tpl,
    'proj_tpl',
    attentions.AttentionProjection,
    quantized_attentions.AttentionProjection,
    params,
  )
  _quantize(
    attn_tpl,
    'combined_qkv_proj_tpl',
    attentions.CombinedQKVProjectionLayer,
    quantized_attentions.CombinedQKVProjectionLayer,
    params,
  )


def quantize_mq_dot_product_attention_layer_weights(
  attn_tpl: Config,
  quantization_type: QuantizationType,
  mode: QuantizationMode,
  weight_quantization_params: WeightQuantizationParams,
  act_quantization_params: ActQuantizationParams | None = None,
) -> None:
  """Quantises those of a `MultiQueryDotProductAttention` template."""
  quantize_dot_product_attention_layer_weights(
    attn_tpl,
    quantization_type,
    mode,
    weight_quantization_params,
    act_quantization_params,
  )
  _quantize(
    attn_tpl,
    'headless_proj_tpl',
    multi_query_attention.OneHeadedAttentionProjection,
    quantized_multi_query_attention.OneHeadedAttentionProjection,
    attn_tpl.proj_tpl.quantization,
  )


def quantize_transformer_feed_forward_layer_weights(
  tr_fflayer_tpl: Config,
  quantization_type: QuantizationType,
  mode: QuantizationMode,
  weight_quantization_params: WeightQuantizationParams,
  act_quantization_params: ActQuantizationParams | None = None,
  rank: int = -1,
) -> None:
  """Quantises the linear layers of a `TransformerFeedForward` template."""
  params = QuantizationParams(
    quantization_type, mode, act_quantization_params, weight_quantization_params
  )
  fflayer_tpl = tr_fflayer_tpl.fflayer_tpl
  _quantize(
    fflayer_tpl, 'linear_tpl', linears.Linear, quantized_linears.Linear, params
  )
  fflayer_tpl.linear_tpl.rank = rank


def quantize_embedding_softmax_layer_weights(
  layer_tpl: Config,
  names: tuple[str, ...],
  params: QuantizationParams,
  *,
  transposed_embedding_softmax: bool = False,
) -> None:
  """Quantises the shared embeddings and softmaxes among fields of a model."""
  cls = quantized_embedding_softmax.SharedEmbeddingSoftmax
  if transposed_embedding_softmax:
    cls = quantized_embedding_softmax.NClassMajorSharedEmbeddingSoftmax
  shared = embedding_softmax.SharedEmbeddingSoftmax
  for name in names:
    template = getattr(layer_tpl, name)
    if template is not None and issubclass(template.cls, shared):
      _quantize(layer_tpl, name, shared, cls, params)


def _quantize(
  owner: Config,
  name: str,
  plain: type,
  quantized: type,
  params: QuantizationParams,
) -> None:
  """Replaces a template of `plain`, or any other, by one of `quantized`.

  Fields that are set stay set, if it was of `plain`; a subclass of `quantized`
  stays what it is.
  """
  template = getattr(owner, name)
  if issubclass(template.cls, plain):
    template = template.clone()
  else:
    template = Config(quantized)
  if not issubclass(template.cls, quantized):
    template.cls = quantized
  template.quantization = copy.deepcopy(params)
  setattr(owner, name, template)
