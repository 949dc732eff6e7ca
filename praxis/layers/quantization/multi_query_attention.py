# SPDX-License-Identifier: Apache-2.0
"""Re-exports `OneHeadedAttentionProjection` under upstream's module path."""

from praxis.layers.quantization.attentions import OneHeadedAttentionProjection

__all__ = ['OneHeadedAttentionProjection']
