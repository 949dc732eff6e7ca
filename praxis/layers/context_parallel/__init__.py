# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences that are split over devices."""

from praxis.layers.context_parallel.attention_layers import (
  ContextParallelAttention,
  ContextParallelGroupedQueryAttention,
)

__all__ = ['ContextParallelAttention', 'ContextParallelGroupedQueryAttention']
