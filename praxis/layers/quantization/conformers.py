# SPDX-License-Identifier: Apache-2.0
"""Re-exports `DotProductAttentionWithContext` under upstream's module path."""

from praxis.alias_names import module_getattr
from praxis.layers.quantization.attentions import (
  DotProductAttentionWithContext,
)

__getattr__ = module_getattr(__name__)

__all__ = ['DotProductAttentionWithContext']
