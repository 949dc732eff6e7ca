# SPDX-License-Identifier: Apache-2.0
"""One small stack for each kind of attention and of feed-forward block."""

from __future__ import annotations

from typing import Any

from praxis import pax_fiddle
from praxis.layers import (
  activations,
  attentions,
  gpu_fast_attention,
  multi_query_attention,
  normalizations,
  transformers,
)

B, T, D, F, N, L = 2, 6, 8, 12, 2, 2
Config = pax_fiddle.Config
LayerTpl = Config[Any]


def attention(cls: type = attentions.DotProductAttention, **kwargs: Any):
  return {'tr_atten_tpl': Config(cls, **kwargs)}


def feed_forward(
  cls: type = transformers.TransformerFeedForward, **kwargs: Any
):
  return {'tr_fflayer_tpl': Config(cls, **kwargs)}


def experts(**kwargs: Any):
  # There is a place for every token, so that none is dropped for another.
  return feed_forward(
    transformers.TransformerFeedForwardMoe,
    num_experts=4,
    num_groups=1,
    unadjusted_expert_capacity_factor=8.0,
    **kwargs,
  )


# {name: fields of its transformer layer}.
KINDS: dict[str, dict[str, Any]] = {
  'plain': {},
  'combined_rotary': attention(
    combine_qkv=True, use_rotary_position_emb=True, use_bias=False
  ),
  'relative_bias': attention(
    relative_bias_tpl=Config(attentions.RelativeBias), atten_logit_cap=3.0
  ),
  'positions_of_segments': attention(
    relative_bias_tpl=Config(
      attentions.RelativeBias, use_length_as_position=False
    )
  ),
  'convolved': attention(dconv_qkv=True),
  'normed_heads': attention(
    ln_tpl=Config(normalizations.RmsNorm), zero_fully_masked=True
  ),
  'extra_logit': attention(attention_extra_logit=0.0),
  'xl': attention(attentions.DotProductAttentionXL, rel_pos_emb_dim=D),
  'local': attention(
    attentions.LocalSelfAttention, block_size=2, left_context=3, right_context=1
  ),
  'local_relative_bias': attention(
    attentions.LocalSelfAttentionRelativeBias,
    block_size=2,
    left_context=3,
    right_context=1,
  ),
  'one_key_head': attention(
    multi_query_attention.MultiQueryDotProductAttention,
    use_rotary_position_emb=True,
  ),
  'key_head_windows': attention(
    multi_query_attention.MultiQueryDotProductAttention,
    num_kv_heads=N,
    local_window_size=(1, 1),
  ),
  'fused': attention(gpu_fast_attention.GpuCudnnFusedDotProductAttention),
  'primer': {'norm_policy': 'primer_hybrid'},
  'post_skip': {'norm_policy': 'post_skip'},
  'gated': feed_forward(
    use_gated_activation=True,
    activation_tpl=Config(activations.SiLU),
    has_bias=False,
  ),
  'experts': experts(),
  'dense_experts': experts(gating_func='dense_top2'),
}

# Kinds in which rounding may choose another expert, and so another function.
DISCONTINUOUS = {'experts', 'dense_experts'}


def stack(name: str, num_layers: int, **kwargs: Any) -> LayerTpl:
  """Returns a StackedTransformer of this kind."""
  layer = Config(transformers.Transformer, **KINDS[name])
  if layer.tr_fflayer_tpl.activation_tpl.cls is activations.ReLU:
    # Smooth: a unit of a ReLU that is on or off by rounding changes gradients
    # by 5 %, whatever the kind.
    layer.tr_fflayer_tpl.activation_tpl = Config(activations.GELU)
  return Config(
    transformers.StackedTransformer,
    num_layers=num_layers,
    model_dims=D,
    hidden_dims=F,
    num_heads=N,
    mask_self_attention=True,
    packed_input=True,
    transformer_layer_params_tpl=layer,
    **kwargs,
  )


def repeated(name: str, **kwargs: Any) -> LayerTpl:
  """Returns as many layers, scanned."""
  return Config(
    transformers.StackedTransformerRepeated,
    block=stack(name, 1),
    x_times=L,
    **kwargs,
  )
