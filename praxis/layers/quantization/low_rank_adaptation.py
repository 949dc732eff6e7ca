# SPDX-License-Identifier: Apache-2.0
"""Low-rank updates of quantized weights (QLoRA, arXiv:2305.14314).

The factors are float, and learn while the integers stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from praxis import base_layer
from praxis.layers import low_rank_adaptation
from praxis.layers.quantization import (
  attentions,
  linears,
  quantized_layer_mixin,
)


class QuantizedAdaptation(
  low_rank_adaptation.LowRankAdaptation,
  quantized_layer_mixin.QuantizedLayerMixin,
):
  """Adds the product with the update to that with the quantized weight."""

  def setup(self) -> None:
    super().setup()
    if self.use_dora:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} must have use_dora=False, as the'
        ' norms are those of float weights, got True; set it to False, or do'
        ' not quantize the weights'
      )

  def _float_declaration(self, weight: str) -> base_layer.WeightHParams:
    # Without `quantization` there is no other.
    return self._float_hparams.get(weight) or self._declared(weight)


class AdaptedLinear(QuantizedAdaptation, linears.Linear):
  """A quantized Linear with a low-rank update."""


class AdaptedAttentionProjection(
  QuantizedAdaptation,
  low_rank_adaptation.AdaptedAttentionProjection,
  attentions.AttentionProjection,
):
  """A quantized projection to or from heads with a low-rank update."""

  def product_weight(self) -> None:
    """Returns None: the weight is not one array of floats."""


class AdaptedCombinedQKVProjectionLayer(
  QuantizedAdaptation, attentions.CombinedQKVProjectionLayer
):
  """A quantized projection to queries, keys and values with updates."""


class AdaptedOneHeadedAttentionProjection(
  QuantizedAdaptation, attentions.OneHeadedAttentionProjection
):
  """A quantized projection to one head with a low-rank update."""


# The quantized layers by those that they replace.
QUANTIZED: Mapping[type, type] = {
  low_rank_adaptation.AdaptedLinear: AdaptedLinear,
  low_rank_adaptation.AdaptedAttentionProjection: AdaptedAttentionProjection,
  low_rank_adaptation.AdaptedCombinedQKVProjectionLayer: (
    AdaptedCombinedQKVProjectionLayer
  ),
  low_rank_adaptation.AdaptedOneHeadedAttentionProjection: (
    AdaptedOneHeadedAttentionProjection
  ),
}
