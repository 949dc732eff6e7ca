# SPDX-License-Identifier: Apache-2.0
"""Attention layers, masks and projections."""

from praxis.alias_names import module_getattr
from praxis.layers.attentions.dconv import (
  BiasedCausalDepthwiseConv1D,
  CausalDepthwiseConv1D,
  shift_1d,
)
from praxis.layers.attentions.dot_product import DotProductAttention
from praxis.layers.attentions.lazy_prefix import DotProductAttentionWithLPB
from praxis.layers.attentions.local import (
  LocalSelfAttention,
  convert_to_block,
  extract_block_context,
)
from praxis.layers.attentions.local_bias import (
  LocalSelfAttentionAlibi,
  LocalSelfAttentionRelativeBias,
)
from praxis.layers.attentions.masks import (
  additive_mask,
  apply_mask,
  causal_mask,
  causal_segment_mask,
  convert_paddings_to_mask,
  limited_context_mask,
  merge_masks,
  segment_mask,
)
from praxis.layers.attentions.projections import (
  AttentionProjection,
  CombinedQKVProjectionLayer,
  PerDimScale,
)
from praxis.layers.attentions.query_temperature import QueryTemperature
from praxis.layers.attentions.relative_bias import RelativeBias
from praxis.layers.attentions.xl import (
  DotProductAttentionXL,
  LocalSelfAttentionXL,
  create_relative_positional_embedding,
)

__getattr__ = module_getattr(__name__)

__all__ = [
  'AttentionProjection',
  'BiasedCausalDepthwiseConv1D',
  'CausalDepthwiseConv1D',
  'CombinedQKVProjectionLayer',
  'DotProductAttention',
  'DotProductAttentionWithLPB',
  'DotProductAttentionXL',
  'LocalSelfAttention',
  'LocalSelfAttentionAlibi',
  'LocalSelfAttentionRelativeBias',
  'LocalSelfAttentionXL',
  'PerDimScale',
  'QueryTemperature',
  'RelativeBias',
  'additive_mask',
  'apply_mask',
  'causal_mask',
  'causal_segment_mask',
  'convert_paddings_to_mask',
  'convert_to_block',
  'create_relative_positional_embedding',
  'extract_block_context',
  'limited_context_mask',
  'merge_masks',
  'segment_mask',
  'shift_1d',
]
