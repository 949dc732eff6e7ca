# SPDX-License-Identifier: Apache-2.0
"""Quantization of the templates of transformer layers."""

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
  low_rank_adaptation,
  quantization_hparams,
)
from praxis.layers.quantization import (
  multi_query_attention as quantized_multi_query_attention,
)

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
  """Quantizes the feed-forward and attention layers of a `Transformer`.

  Args:
    tr_tpl: the template of the transformer layer, changed in place.
    quantization_type: the quantization method.
    mode: the phase that the model is built for.
    weight_quantization_params: quantization of weights.
    act_quantization_params: quantization of activations; None: float.
    linear_only: whether to leave attentions in float.
    rank: rank of the factors of linear layers; -1: one matrix.
    quantize_self_attention: whether to quantize the self attention.
    quantize_cross_attention: whether to quantize the cross attention.
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
  """Quantizes the projections of the attentions of a `Transformer` template.

  The arguments are those of `quantize_transformer_layer_weights`.

  Raises:
    ValueError: the class of an attention does not support quantization.
  """
  if quantize_cross_attention != quantize_self_attention:
    # An unset cross attention would follow the self attention.
    if tr_tpl.cross_atten_tpl is None:
      tr_tpl.cross_atten_tpl = tr_tpl.tr_atten_tpl.clone()
  for name, is_quantized in (
    ('tr_atten_tpl', quantize_self_attention),
    ('cross_atten_tpl', quantize_cross_attention),
  ):
    template = getattr(tr_tpl, name)
    if not is_quantized or template is None:
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
        f'to be quantized, got {template.cls.__name__}; set linear_only=True'
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
  """Quantizes the projections of a `DotProductAttention` template."""
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
  """Quantizes the projections of a `MultiQueryDotProductAttention`."""
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
  """Quantizes the linear layers of a `TransformerFeedForward` template."""
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
  """Quantizes the fields of a model that hold shared embedding softmaxes.

  Args:
    layer_tpl: the template of the model, changed in place.
    names: the fields.
    params: the quantization.
    transposed_embedding_softmax: whether the tables are [classes, dims].
  """
  cls: type[embedding_softmax.SharedEmbeddingSoftmax]
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
  """Replaces the template `owner.name` by one of the class `quantized`.

  Set fields are kept if its class derives from `plain`. Subclasses of
  `quantized` keep their class, and layers with low-rank updates keep these.
  """
  template = getattr(owner, name)
  if issubclass(template.cls, plain):
    template = template.clone()
  else:
    template = Config(quantized)
  if not issubclass(template.cls, quantized):
    template.cls = low_rank_adaptation.QUANTIZED.get(template.cls, quantized)
  template.quantization = copy.deepcopy(params)
  setattr(owner, name, template)
