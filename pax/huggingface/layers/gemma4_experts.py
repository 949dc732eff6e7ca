# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts of Gemma 4, whose branches have norms of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from pax.huggingface import weight_layouts
from pax.huggingface.layers.mixture_of_experts import (
  ExpertTensors,
  MixtureOfExperts,
)
from pax.huggingface.weight_layouts import WeightLayout
from praxis.layers import transformers

_TENSORS = ExpertTensors(
  mixture=None,
  router='router.proj',
  shared='mlp',
  gate='gate_up_proj',
  up='gate_up_proj',
  down='down_proj',
  fused_outputs_first=True,
)
# Scales of norms by the names of their tensors.
_NORMS = {
  'router.scale': 'router_layer_norm',
  'pre_feedforward_layernorm_2.weight': 'expert_layer_norm',
  'post_feedforward_layernorm_1.weight': 'shared_output_layer_norm',
  'post_feedforward_layernorm_2.weight': 'expert_output_layer_norm',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma4Experts(MixtureOfExperts):
  """The settings of the mixtures of a model."""

  layer_class: ClassVar[type[transformers.TransformerFeedForwardMoe]] = (
    transformers.BranchNormFeedForwardMoe
  )
  normalize_gates: bool = True
  tensors: ExpertTensors = _TENSORS

  def weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of a layer; see MixtureOfExperts."""
    yield from super().weights(source, target, model_dims)
    for tensor, norm in _NORMS.items():
      yield weight_layouts.same(
        f'{source}.{tensor}', f'{target}/{norm}/scale', model_dims
      )
    yield weight_layouts.same(
      f'{source}.router.per_expert_scale',
      f'{target}/expert_scale',
      self.num_experts,
    )
