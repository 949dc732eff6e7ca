# SPDX-License-Identifier: Apache-2.0
"""Attention: masks, projections, positions and dot-product attention."""

from praxis.layers.attentions.dconv import CausalDepthwiseConv1D, shift_1d
from praxis.layers.attentions.dot_product import DotProductAttention
from praxis.layers.attentions.masks import (
  apply_mask,
  causal_mask,
  causal_segment_mask,
  convert_paddings_to_mask,
  hide,
  limited_context_mask,
  merge_masks,
  segment_mask,
)
from praxis.layers.attentions.positions import PerDimScale, RelativeBias
from praxis.layers.attentions.projections import (
  AttentionProjection,
  CombinedQKVProjectionLayer,
)
from praxis.layers.attentions.xl import DotProductAttentionXL

__all__ = [
  'AttentionProjection',
  'CausalDepthwiseConv1D',
  'CombinedQKVProjectionLayer',
  'DotProductAttention',
  'DotProductAttentionXL',
  'PerDimScale',
  'RelativeBias',
  'apply_mask',
  'causal_mask',
  'causal_segment_mask',
  'convert_paddings_to_mask',
  'hide',
  'limited_context_mask',
  'merge_masks',
  'segment_mask',
  'shift_1d',
]
