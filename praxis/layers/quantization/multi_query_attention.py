# SPDX-License-Identifier: Apache-2.0
"""Re-exports `OneHeadedAttentionProjection` under upstream's module path."""

from praxis.alias_names import module_getattr
from praxis.layers.quantization.attentions import OneHeadedAttentionProjection

__getattr__ = module_getattr(__name__)

__all__ = ['OneHeadedAttentionProjection']
