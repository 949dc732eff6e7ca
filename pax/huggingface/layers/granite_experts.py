# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts of Granite 4, with tensors of all experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from typing_extensions import override

from pax.huggingface import weight_layouts
from pax.huggingface.layers.mixture_of_experts import (
  ExpertTensors,
  MixtureOfExperts,
)
from pax.huggingface.weight_layouts import WeightLayout

# Projections of a feed-forward layer and of experts: gates with what they
# multiply, and outputs.
PROJECTIONS = ('input_linear', 'output_linear')
# The feed-forward layer of all tokens.
SHARED = 'shared_mlp'

_TENSORS = ExpertTensors(
  mixture=None,
  router='block_sparse_moe.router.layer',
  experts='block_sparse_moe',
  gate=f'{PROJECTIONS[0]}.weight',
  up=f'{PROJECTIONS[0]}.weight',
  down=f'{PROJECTIONS[1]}.weight',
  fused_outputs_first=True,
  shared=SHARED,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteExperts(MixtureOfExperts):
  """The settings of the mixtures of a model."""

  normalize_gates: bool = True
  tensors: ExpertTensors = _TENSORS

  @override
  def _shared_weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    inputs, outputs = PROJECTIONS
    return weight_layouts.fused_feed_forward(
      f'{source}.{inputs}',
      f'{source}.{outputs}',
      target,
      model_dims,
      self.shared_hidden_dims,
    )
