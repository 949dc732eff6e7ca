# SPDX-License-Identifier: Apache-2.0
"""Layers fine-tuned by low-rank adaptation (LoRA, arXiv:2106.09685).

The weight `w` is read as w + A Bᵀ, where B starts at zero. A learner that
freezes `w` trains `lora_a` and `lora_b` only. Layers of
`praxis.layers.low_rank_adaptation` do not compute the sum.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from praxis import base_layer, weight_matrices
from praxis.alias_names import module_getattr
from praxis.layers import attentions, linears, low_rank_adaptation

__getattr__ = module_getattr(__name__)


class LoraTheta(base_layer.Theta):
  """The weights of a layer by name; `w` includes the low-rank update."""

  def __getattr__(self, name: str) -> Array:
    weight = super().__getattr__(name)
    return weight + self.module.weight_update() if name == 'w' else weight

  def __getitem__(self, name: str) -> Array:
    return getattr(self, name)


class LoraThetaDescriptor(base_layer.ThetaDescriptor):
  """Makes `layer.theta` a LoraTheta."""

  def __get__(self, layer: Any, owner: type | None = None) -> Any:
    return self if layer is None else LoraTheta(layer)


class LoraUpdates(low_rank_adaptation.LowRankUpdates):
  """Declares a low-rank update that `theta.w` includes."""

  # The rank of the update.
  rank: int = 0

  theta = LoraThetaDescriptor()
  _RANK_FIELD = 'rank'


class LoraLinear(LoraUpdates, linears.Linear):
  """A linear layer with a low-rank update of its weight."""


class LoraAttentionProjection(LoraUpdates, attentions.AttentionProjection):
  """A projection to or from heads with a low-rank update of its weight.

  A is of the model dimension and B of the heads, also from heads.
  """

  def _factor_axes(
    self, declared: base_layer.WeightHParams
  ) -> weight_matrices.MatrixAxes:
    inputs, outputs = super()._factor_axes(declared)
    return (outputs, inputs) if self.is_output_projection else (inputs, outputs)


class LoraCombinedQKVProjection(
  LoraUpdates, attentions.CombinedQKVProjectionLayer
):
  """Projects to queries, keys and values, with a low-rank update of each."""
