# SPDX-License-Identifier: Apache-2.0
"""Grouped-query attention, and its boolean masks."""

from praxis.layers.grouped_query_attention.functions import (
  apply_dropout,
  apply_mask,
  apply_rope,
  attention_mask,
  causal_mask,
  padding_mask,
  segment_mask,
)
from praxis.layers.grouped_query_attention.layer import GroupedQueryAttention

__all__ = [
  'GroupedQueryAttention',
  'apply_dropout',
  'apply_mask',
  'apply_rope',
  'attention_mask',
  'causal_mask',
  'padding_mask',
  'segment_mask',
]
