# SPDX-License-Identifier: Apache-2.0
"""Attention."""

from __future__ import annotations

from typing import Any

from praxis import pax_fiddle
from praxis.layers import (
  attentions,
  context_parallel,
  gpu_fast_attention,
  normalizations,
  shared_key_attention,
)
from praxis.layers import grouped_query_attention as gqa
from praxis.layers import multi_query_attention as mqa
from praxis.layers.attentions import attention_core
from tests.golden.layer_case import case, f32, i32

_SIZES = {'input_dim': 6, 'hidden_dim': 8, 'num_heads': 4}
_GROUPS = {'input_dim': 6, 'dim_per_head': 2, 'num_heads': 4, 'num_kv_heads': 2}
_WINDOW = {'block_size': 3, 'left_context': 3, 'right_context': 1}
_INPUTS = (f32(2, 5, 6), f32(2, 5, 6), f32(2, 5, 6), f32(1, 1, 5, 5))


def _attention(cls: Any, **fields: Any) -> Any:
  cfg = pax_fiddle.Config(cls, **{**_SIZES, **fields})
  cfg.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  cfg.weight_split_dims_mapping.dconv = ['mdl', None]
  return case(cfg, *_INPUTS)


def _projection(cls: Any, **fields: Any) -> Any:
  cfg = pax_fiddle.Config(
    cls, input_dim=6, num_heads=4, dim_per_head=2, **fields
  )
  is_nhd = fields.get('use_nhd_shape')
  split = ['mdl', None, 'data'] if is_nhd else ['data', 'mdl', None]
  cfg.weight_split_dims_mapping.wt = split
  return case(cfg, f32(2, 5, 4, 2) if fields else f32(2, 5, 6))


def _headless(
  cls: Any = mqa.MultiQueryDotProductAttention, **fields: Any
) -> Any:
  cfg = pax_fiddle.Config(cls, **{**_SIZES, **fields})
  cfg.weight_split_dims_mapping.proj = ['data', 'mdl', None]
  cfg.weight_split_dims_mapping.proj_headless = ['data', None]
  return case(cfg, *_INPUTS)


def _grouped(cls: Any, **fields: Any) -> Any:
  cfg = pax_fiddle.Config(cls, **{**_GROUPS, **fields})
  cfg.weight_split_dims_mapping.dnh = ['data', 'mdl', None]
  return case(cfg, *_INPUTS)


CASES = {
  'DotProductAttention': _attention(
    attentions.DotProductAttention,
    dconv_qkv=True,
    relative_bias_tpl=attentions.RelativeBias.config(),
    ln_tpl=normalizations.RmsNorm.config(),
  ),
  'DotProductAttentionWithLPB': _attention(
    attentions.DotProductAttentionWithLPB, use_rotary_position_emb=True
  ),
  'CausalDepthwiseConv1D': case(
    attentions.CausalDepthwiseConv1D.config(kernel_size=2, hidden_dims=[4, 2]),
    f32(2, 5, 4, 2),
    1,
  ),
  'PerDimScale': case(attentions.PerDimScale.config(dim=2), f32(2, 5, 4, 2)),
  'QueryTemperature': case(
    attentions.QueryTemperature.config(interval=2), f32(2, 5, 4, 2)
  ),
  'RelativeBias': case(
    attentions.RelativeBias.config(
      num_heads=4, relative_attention_num_buckets=8
    ),
    i32(2, 5),
  ),
  'AttentionProjection output': _projection(
    attentions.AttentionProjection,
    is_output_projection=True,
    use_nhd_shape=True,
  ),
  'CombinedQKVProjectionLayer': _projection(
    attentions.CombinedQKVProjectionLayer
  ),
  'DotProductAttentionXL': _attention(
    attentions.DotProductAttentionXL, rel_pos_emb_dim=4
  ),
  'LocalSelfAttention': _attention(attentions.LocalSelfAttention, **_WINDOW),
  'LocalSelfAttentionXL': _attention(
    attentions.LocalSelfAttentionXL, rel_pos_emb_dim=4, **_WINDOW
  ),
  'LocalSelfAttentionRelativeBias': _attention(
    attentions.LocalSelfAttentionRelativeBias, **_WINDOW
  ),
  'LocalSelfAttentionAlibi': _attention(
    attentions.LocalSelfAttentionAlibi, **_WINDOW
  ),
  'MultiQueryDotProductAttention': _headless(),
  'MultiQueryDotProductAttention grouped': _headless(num_kv_heads=2),
  'MultiQueryDotProductAttentionLPB': _headless(
    mqa.MultiQueryDotProductAttentionLPB
  ),
  'KeySourceAttention': _headless(shared_key_attention.KeySourceAttention),
  'SharedKeyAttention': case(
    shared_key_attention.SharedKeyAttention.config(
      **_SIZES, num_kv_heads=2, ln_tpl=normalizations.RmsNorm.config()
    ),
    f32(2, 5, 6),
    attention_core.KeysAndValues(f32(2, 5, 2, 2), f32(2, 5, 2, 2)),
    f32(1, 1, 5, 5),
    method='attend',
  ),
  'OneHeadedAttentionProjection': case(
    mqa.OneHeadedAttentionProjection.config(input_dim=6, output_dim=2),
    f32(2, 5, 6),
  ),
  'GroupedQueryAttention': _grouped(gqa.GroupedQueryAttention),
  'GroupedQueryAttention one': _grouped(
    gqa.GroupedQueryAttention, num_kv_heads=1
  ),
  'GpuCudnnFusedDotProductAttention': _attention(
    gpu_fast_attention.GpuCudnnFusedDotProductAttention, is_causal=True
  ),
  'GpuCudnnFusedGroupedQueryAttention': _grouped(
    gpu_fast_attention.GpuCudnnFusedGroupedQueryAttention, is_causal=True
  ),
  'ContextParallelAttention': _attention(
    context_parallel.ContextParallelAttention,
    context_axis='data',
    is_causal=True,
    is_balanced=True,
  ),
  'ContextParallelGroupedQueryAttention': _grouped(
    context_parallel.ContextParallelGroupedQueryAttention,
    context_axis='data',
    context_method='all_gather',
  ),
}
