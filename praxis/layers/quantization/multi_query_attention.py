# SPDX-License-Identifier: Apache-2.0
"""The quantised projection to one head."""

from __future__ import annotations

import flax.linen as nn

from praxis.layers import multi_query_attention
from praxis.layers.quantization import quantized_layer_mixin


class OneHeadedAttentionProjection(
  multi_query_attention.OneHeadedAttentionProjection,
  quantized_layer_mixin.QuantizedLayerMixin,
):
  """A quantised projection of the model dimension to one head."""

  _PACK_4BIT_DIM = 0

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    return {'w': '...D,DH->...H'}
