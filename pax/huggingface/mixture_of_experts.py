# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts without a capacity limit, and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pax.huggingface import weight_layouts
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import transformers

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertTensors:
  """Names of the tensors of a mixture of experts."""

  # Of the mixture in its layer.
  mixture: str
  # Of the projections of an expert: that of the activation, that which its
  # output multiplies, and the output's.
  gate: str
  up: str
  down: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureOfExperts:
  """The settings of the mixtures of a model."""

  num_experts: int
  experts_per_token: int
  hidden_dims: int
  # Indices of the layers with experts.
  layers: tuple[int, ...]
  # Whether the gates of the experts of a token add up to 1.
  normalize_gates: bool
  # Weight of the load balancing loss of transformers, which adds up the shares
  # of all choices and has the mean over layers.
  load_balance_loss_weight: float
  tensors: ExpertTensors

  def set_layers(self, stack: LayerTpl, **feed_forward: Any) -> None:
    """Sets the feed-forward layers of a stack.

    Args:
      stack: A StackedTransformer, changed in place.
      **feed_forward: Fields that mixtures share with other feed-forward layers.
    """
    weight = self.load_balance_loss_weight * self.experts_per_token
    stack.set(
      moe_layers=list(self.layers),
      num_experts=self.num_experts,
      gating_func='dropless',
      moe_layer_tpl=pax_fiddle.Config(
        transformers.TransformerFeedForwardMoe,
        hidden_dims=self.hidden_dims,
        experts_per_token=self.experts_per_token,
        normalize_gates=self.normalize_gates,
        moe_load_balance_loss_weight=weight / max(len(self.layers), 1),
        use_gated_activation=True,
        **feed_forward,
      ),
    )

  def weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of a layer.

    Args:
      source: Name of the layer in the files.
      target: Path of the mixture.
      model_dims: Dimension of the model.
    """
    names, hidden_dims = self.tensors, self.hidden_dims
    source = f'{source}.{names.mixture}'
    yield weight_layouts.transposed(
      f'{source}.gate.weight', f'{target}/gate', self.num_experts, model_dims
    )
    for projection, variable, outputs, inputs in (
      (names.gate, 'wi_gate_0', hidden_dims, model_dims),
      (names.up, 'wi_0', hidden_dims, model_dims),
      (names.down, 'wo_0', model_dims, hidden_dims),
    ):
      for i in range(self.num_experts):
        yield dataclasses.replace(
          weight_layouts.transposed(
            f'{source}.experts.{i}.{projection}.weight',
            f'{target}/{variable}',
            outputs,
            inputs,
          ),
          is_expert=True,
        )
