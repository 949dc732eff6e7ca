# SPDX-License-Identifier: Apache-2.0
"""Attention: options, masks, relative positions, projections, decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from praxis import base_layer
from praxis.layers import (
  attentions,
  embedding_softmax,
  grouped_query_attention,
  multi_query_attention,
  normalizations,
)
from tests.compare.upstream import cases
from tests.compare.upstream.cases import floats, layer, template, vary

_B, _T, _D = 2, 5, 8
_X = floats(_B, _T, _D)
_Q, _K, _V = (floats(_B, _T, _D, seed=i) for i in range(3))
_LENGTHS = [5, 3]
_PADDINGS = cases.paddings(_LENGTHS, _T)
_LARGE = np.float32(-0.7 * np.finfo(np.float32).max)
_PAD_MASK = (_PADDINGS * _LARGE)[:, None, None]
_CAUSAL = np.triu(np.full((_T, _T), _LARGE), 1)[None, None]
_MASK = np.minimum(_PAD_MASK, _CAUSAL)
_SEGMENT_POS = np.array([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]], np.int32)
_SIZES = {'input_dim': _D, 'hidden_dim': 8, 'num_heads': 2}
_PROJ = {'proj': ['data', 'mdl', None], 'dconv': ['mdl', None]}


def _dot_product_1() -> Iterator[cases.Case]:
  options = {
    'dim_per_head': [6],
    'use_bias': [False],
    'internal_enable_query_scale': [False],
    'internal_enable_per_dim_scale': [False],
    'scale_query_by_dim_per_head': [True],
    'scale_logits_by_head_dims': [True],
    'atten_logit_cap': [0.5],
    'use_rotary_position_emb': [True],
    'dconv_qkv': [True],
    'output_proj_use_nhd_shape': [True],
    'zero_fully_masked': [True],
    'relative_bias_tpl': [template(attentions.RelativeBias)],
    'ln_tpl': [template(normalizations.RmsNorm)],
    'internal_gshard_gaussian_init': [True],
    'attention_extra_logit': [0.0, 1.0],
    'attention_mask_summary': [True],
    'qk_einsum_tpl': [],
    'ngrammer_tpl': [],
  }
  for mask_name, mask in {
    'causal': _MASK,
    'open': np.zeros_like(_MASK),
  }.items():
    yield from vary(
      f'DotProductAttention, {mask_name}',
      attentions.DotProductAttention,
      _Q,
      _K,
      _V,
      mask,
      fields=_SIZES,
      weight_splits=_PROJ,
      options=options if mask_name == 'causal' else {'use_bias': [False]},
    )
  yield layer(
    'DotProductAttention, combined',
    attentions.DotProductAttention,
    _Q,
    method=_self_attention,
    init_method=_self_attention,
    init_args=(_Q,),
    fields={
      **_SIZES,
      'combine_qkv': True,
      'combined_qkv_proj_tpl.attention_combine_dims': True,
      'use_rotary_position_emb': True,
    },
  )


def _dot_product_2() -> Iterator[cases.Case]:
  yield layer(
    'DotProductAttention, positions',
    attentions.DotProductAttention,
    _Q,
    _K,
    _V,
    _MASK,
    fields={
      **_SIZES,
      'use_rotary_position_emb': True,
      'relative_bias_tpl': template(attentions.RelativeBias),
    },
    kwargs={
      'query_segment_pos': _SEGMENT_POS,
      'key_segment_pos': _SEGMENT_POS,
    },
  )


def _self_attention(layer_: Any, x: Any) -> Any:
  return layer_(x, x, x, _MASK)


def _norms() -> Iterator[cases.Case]:
  yield from vary(
    'DotProductAttention, norms',
    attentions.DotProductAttention,
    _Q,
    fields={**_SIZES, 'ln_tpl': template(normalizations.LayerNorm)},
    options={
      'use_rotary_position_emb': [True],
      'dconv_qkv': [True],
      'combine_qkv': [True],
    },
    method=_self_attention,
    init_method=_self_attention,
    init_args=(_Q,),
    variants=(cases.TRAIN, cases.EVAL, cases.BFLOAT16),
    tolerance=2e-6,
  )


def _cross() -> Iterator[cases.Case]:
  keys = floats(_B, 7, 6)
  yield layer(
    'DotProductAttention, cross',
    attentions.DotProductAttention,
    _Q,
    keys,
    keys,
    np.zeros((_B, 1, 1, 7), np.float32),
    fields={
      **_SIZES,
      'input_dim': {'query': _D, 'key': 6, 'value': 6},
    },
  )


def _decode(layer_: Any, x: np.ndarray, **kwargs: Any) -> Any:
  """Returns outputs of extend_step at each position, after empty fprop."""
  outputs = []
  for t in range(x.shape[1]):
    mask = jnp.where(jnp.arange(x.shape[1]) <= t, 0.0, _LARGE)
    mask = jnp.broadcast_to(mask, (x.shape[0], 1, 1, x.shape[1]))
    mask = mask[:, :, 0] if kwargs.get('rank3', True) else mask
    outputs.append(
      layer_.extend_step(
        x[:, t], atten_mask=mask, time_step=t, segment_pos=None
      )
    )
  return jnp.stack(outputs, 1)


def _causal_self_attention(layer_: Any, x: Any) -> Any:
  """Attends with one array, as combine_qkv needs."""
  return layer_(x, x, x, _CAUSAL)


def _extend(layer_: Any, x: np.ndarray) -> Any:
  _causal_self_attention(layer_, x)  # Creates the cache.
  return _decode(layer_, x)


def _extend_cases() -> Iterator[cases.Case]:
  for name, cls, fields, options in (
    (
      'DotProductAttention',
      attentions.DotProductAttention,
      _SIZES,
      {
        'use_bias': [False],
        'combine_qkv': [True],
        'use_rotary_position_emb': [True],
        'dconv_qkv': [True],
        'relative_bias_tpl': [template(attentions.RelativeBias)],
        'atten_logit_cap': [0.5],
        'scale_logits_by_head_dims': [True],
        'zero_fully_masked': [True],
      },
    ),
    (
      'MultiQueryDotProductAttention',
      multi_query_attention.MultiQueryDotProductAttention,
      {**_SIZES, 'num_heads': 4},
      {
        'use_bias': [False],
        'use_rotary_position_emb': [True],
        'num_kv_heads': [2],
        'atten_logit_cap': [0.5],
      },
    ),
    (
      'DotProductAttentionWithLPB',
      attentions.DotProductAttentionWithLPB,
      _SIZES,
      {'use_rotary_position_emb': [True], 'combine_qkv': [True]},
    ),
  ):
    yield from vary(
      f'{name}.extend_step',
      cls,
      _X,
      fields=fields,
      options=options,
      method=_extend,
      init_method=_causal_self_attention,
      init_args=(_X,),
      variants=(cases.EVAL, cases.BFLOAT16),
      tolerance=2e-6,
    )


def _projections_1() -> Iterator[cases.Case]:
  size = {'input_dim': _D, 'num_heads': 2, 'dim_per_head': 4}
  splits = {'wt': ['data', 'mdl', None]}
  yield from vary(
    'AttentionProjection',
    attentions.AttentionProjection,
    _X,
    fields=size,
    weight_splits=splits,
    options={
      'use_bias': [False],
      'attention_combine_dims': [],
      'use_nhd_shape': [],
      'explicit_fan_in_fan_out_axes': [True],
    },
  )
  yield from vary(
    'AttentionProjection, output',
    attentions.AttentionProjection,
    floats(_B, _T, 2, 4),
    fields={**size, 'is_output_projection': True},
    weight_splits=splits,
    options={
      'use_bias': [False],
      'use_nhd_shape': [True],
      'explicit_fan_in_fan_out_axes': [True],
    },
  )
  yield from vary(
    'AttentionProjection, combined dims',
    attentions.AttentionProjection,
    _X,
    fields={**size, 'attention_combine_dims': True, 'use_bias': False},
    weight_splits=splits,
    options={},
  )
  yield from vary(
    'CombinedQKVProjectionLayer',
    attentions.CombinedQKVProjectionLayer,
    _X,
    fields=size,
    weight_splits=splits,
    options={
      'use_bias': [False],
      'attention_combine_dims': [True],
      'explicit_fan_in_fan_out_axes': [True],
    },
  )


def _projections_2() -> Iterator[cases.Case]:
  yield from vary(
    'OneHeadedAttentionProjection',
    multi_query_attention.OneHeadedAttentionProjection,
    _X,
    fields={'input_dim': _D, 'output_dim': 4},
    weight_splits={'wt': ['data', 'mdl']},
    options={'use_bias': [False]},
  )
  yield from vary(
    'PerDimScale',
    attentions.PerDimScale,
    floats(_B, _T, 2, 4),
    fields={'dim': 4},
    options={},
  )
  yield from vary(
    'CausalDepthwiseConv1D',
    attentions.CausalDepthwiseConv1D,
    floats(_B, _T, 2, 4),
    kwargs={'axis': 1},
    # The axis is traced where declared variables are found.
    variants=(cases.TRAIN, cases.EVAL, cases.BFLOAT16),
    fields={'kernel_size': 2, 'hidden_dims': [2, 4]},
    options={'kernel_size': [3]},
  )
  for bidirectional in (False, True):
    yield from vary(
      f'RelativeBias, {bidirectional}',
      attentions.RelativeBias,
      _SEGMENT_POS,
      _SEGMENT_POS,
      fields={
        'num_heads': 2,
        'relative_attention_num_buckets': 8,
        'relative_attention_max_distance': 4,
        'bidirectional': bidirectional,
      },
      options={},
    )


def _local() -> Iterator[cases.Case]:
  x = floats(_B, 7, _D)
  mask = (cases.paddings([7, 6], 7) * _LARGE)[:, None, None]
  for name, fields in {
    'LocalSelfAttention': {},
    'LocalSelfAttentionXL': {'rel_pos_emb_dim': 4},
    'LocalSelfAttentionRelativeBias': {},
    'LocalSelfAttentionAlibi': {},
  }.items():
    for block, left, right in ((3, 3, 1), (4, 2, 0), (7, 4, 3)):
      yield layer(
        f'{name}, {block}, {left}, {right}',
        getattr(attentions, name),
        x,
        x,
        x,
        mask,
        fields={
          **_SIZES,
          **fields,
          'block_size': block,
          'left_context': left,
          'right_context': right,
        },
        variants=(cases.VARIABLES, cases.TRAIN, cases.BFLOAT16),
        tolerance=2e-6,
      )
  yield from vary(
    'DotProductAttentionXL',
    attentions.DotProductAttentionXL,
    _X,
    _X,
    _X,
    _MASK,
    fields={**_SIZES, 'rel_pos_emb_dim': 4},
    options={'use_bias': [False], 'atten_logit_cap': [0.5]},
  )


def _headless() -> Iterator[cases.Case]:
  yield from vary(
    'MultiQueryDotProductAttention',
    multi_query_attention.MultiQueryDotProductAttention,
    _Q,
    _K,
    _V,
    _MASK,
    fields={**_SIZES, 'num_heads': 4},
    weight_splits={
      'proj': ['data', 'mdl', None],
      'proj_headless': ['data', None],
    },
    options={
      'use_bias': [False],
      'num_kv_heads': [2],
      'use_rotary_position_emb': [True],
      'atten_logit_cap': [0.5],
      'scale_query_by_dim_per_head': [True],
    },
  )
  yield from vary(
    'MultiQueryDotProductAttentionLPB',
    multi_query_attention.MultiQueryDotProductAttentionLPB,
    _Q,
    _K,
    _V,
    _MASK,
    fields={**_SIZES, 'num_heads': 4},
    options={'use_rotary_position_emb': [True]},
  )
  yield from vary(
    'GroupedQueryAttention',
    grouped_query_attention.GroupedQueryAttention,
    _Q,
    _K,
    _V,
    _MASK,
    _SEGMENT_POS,
    _SEGMENT_POS,
    fields={
      'input_dim': _D,
      'dim_per_head': 4,
      'num_heads': 4,
      'num_kv_heads': 2,
    },
    weight_splits={'dnh': ['data', 'mdl', None]},
    options={
      'num_kv_heads': [1, 4],
      'rope_min_max_timescales': [(1, 100)],
      'atten_logit_cap': [0.5],
      'atten_temp': [0.7],
      'use_bias': [True],
    },
  )


def _functions() -> Iterator[cases.Case]:
  def add(name: str, function: Any) -> cases.Case:
    return cases.FunctionCase(name=name, function=function)

  for dtype in (jnp.float32, jnp.bfloat16):
    label = jnp.dtype(dtype).name
    yield add(
      f'causal_mask, {label}',
      lambda dtype=dtype: attentions.causal_mask(
        jnp.zeros((_B, _T, _D), dtype)
      ),
    )
    yield add(
      f'convert_paddings_to_mask, {label}',
      lambda dtype=dtype: attentions.convert_paddings_to_mask(_PADDINGS, dtype),
    )
    yield add(
      f'segment_mask, {label}',
      lambda dtype=dtype: attentions.segment_mask(
        np.array([[1, 1, 2, 2, 0], [1, 2, 2, 3, 3]]), dtype=dtype
      ),
    )
    yield add(
      f'causal_segment_mask, {label}',
      lambda dtype=dtype: attentions.causal_segment_mask(
        np.array([[1, 1, 2, 2, 0], [1, 2, 2, 3, 3]]), dtype
      ),
    )
    yield add(
      f'causal_segment_mask, prefix, {label}',
      lambda dtype=dtype: attentions.causal_segment_mask(
        np.array([[1, 1, 2, 2, 0], [1, 2, 2, 3, 3]]),
        dtype,
        np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]),
      ),
    )
  for left, right in ((1, 0), (2, 1), (None, 1), (3, None), (0, 0)):
    yield add(
      f'limited_context_mask, {left}, {right}',
      lambda left=left, right=right: attentions.limited_context_mask(
        left, right, _T
      ),
    )
  yield add(
    'dropout-free RoPE',
    lambda: base_layer.instantiate(
      embedding_softmax.RotaryPositionalEmbedding.config(embedding_dims=4)
    ).apply({}, floats(_B, _T, 2, 4)),
  )


def family() -> Iterator[cases.Case]:
  yield from _dot_product_1()
  yield from _dot_product_2()
  yield from _norms()
  yield from _cross()
  yield from _extend_cases()
  yield from _projections_1()
  yield from _projections_2()
  yield from _local()
  yield from _headless()
  yield from _functions()
