# SPDX-License-Identifier: Apache-2.0
"""Re-exports `DotProductAttentionWithContext` under upstream's module path."""

from praxis.layers.quantization.attentions import (
  DotProductAttentionWithContext,
)

__all__ = ['DotProductAttentionWithContext']
