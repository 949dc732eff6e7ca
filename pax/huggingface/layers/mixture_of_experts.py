# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts without a capacity limit, and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pax.huggingface import weight_layouts
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import transformers

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertTensors:
  """Names of the tensors of a mixture of experts."""

  # Of the mixture in its layer; None if the layer has its tensors.
  mixture: str | None
  # Of the projections of an expert: that of the activation, that which its
  # output multiplies, and the output's. The first is None without gates. If the
  # first two are the same, one tensor has both for all experts,
  # [E, inputs, 2 * outputs], and one the outputs'; with `fused_outputs_first`
  # outputs come before inputs.
  gate: str | None
  up: str
  down: str
  fused_outputs_first: bool = False
  # Of the router and of the experts, in the mixture.
  router: str = 'gate'
  experts: str = 'experts'
  # Of the feed-forward layer of all tokens, and of the bias of the choice, in
  # the mixture; None where there is none.
  shared: str | None = None
  choice_bias: str | None = None
  # Of the projection of a token to the number that the output of `shared` is
  # multiplied by the sigmoid of; None for no factor.
  shared_gate: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureOfExperts:
  """The settings of the mixtures of a model."""

  layer_class: ClassVar[type[transformers.TransformerFeedForwardMoe]] = (
    transformers.TransformerFeedForwardMoe
  )
  num_experts: int
  experts_per_token: int
  hidden_dims: int
  # Indices of the layers with experts.
  layers: tuple[int, ...]
  # Whether the gates of the experts of a token add up to 1.
  normalize_gates: bool
  # Of each layer.
  load_balance_loss_weight: float
  tensors: ExpertTensors
  # Hidden dimension of the feed-forward layer of all tokens, and whether it has
  # biases.
  shared_hidden_dims: int = 0
  shared_has_bias: bool = False
  # Other fields of the layer.
  routing: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def _has_gates(self) -> bool:
    return self.tensors.gate is not None

  def set_layers(self, stack: LayerTpl, **feed_forward: Any) -> None:
    """Sets the feed-forward layers of a stack.

    Args:
      stack: A StackedTransformer, changed in place.
      **feed_forward: Fields that mixtures share with other feed-forward layers:
        activation_tpl, ln_tpl and residual_weight.
    """
    moe = pax_fiddle.Config(
      self.layer_class,
      hidden_dims=self.hidden_dims,
      experts_per_token=self.experts_per_token,
      normalize_gates=self.normalize_gates,
      moe_load_balance_loss_weight=self.load_balance_loss_weight,
      use_gated_activation=self._has_gates,
      use_choice_bias=self.tensors.choice_bias is not None,
      **feed_forward,
      **self.routing,
    )
    if self.tensors.shared is not None:
      moe.shared_experts_tpl = pax_fiddle.Config(
        transformers.TransformerFeedForward,
        hidden_dims=self.shared_hidden_dims,
        has_bias=self.shared_has_bias,
        use_gated_activation=self._has_gates,
        use_output_gate=self.tensors.shared_gate is not None,
        activation_tpl=feed_forward['activation_tpl'],
      )
    stack.set(
      moe_layers=list(self.layers),
      num_experts=self.num_experts,
      gating_func='dropless',
      moe_layer_tpl=moe,
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
    names = self.tensors
    if names.mixture is not None:
      source = f'{source}.{names.mixture}'
    yield weight_layouts.transposed(
      f'{source}.{names.router}.weight',
      f'{target}/gate',
      *(self.num_experts, model_dims),
    )
    if names.choice_bias is not None:
      # A variable that no gradient updates.
      bias = target.replace('params/', 'non_trainable/', 1)
      yield weight_layouts.same(
        f'{source}.{names.choice_bias}', f'{bias}/choice_bias', self.num_experts
      )
    if names.shared is not None:
      yield from self._shared_weights(
        f'{source}.{names.shared}', f'{target}/shared_experts', model_dims
      )
    if names.shared_gate is not None:
      yield weight_layouts.transposed(
        f'{source}.{names.shared_gate}.weight',
        f'{target}/shared_experts/output_gate/linear/w',
        *(1, model_dims),
      )
    of_experts = f'{source}.{names.experts}', target, model_dims
    if names.gate == names.up:
      yield from self._fused_weights(*of_experts)
    else:
      yield from self._expert_weights(*of_experts)

  def _shared_weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the feed-forward layer of all tokens."""
    return weight_layouts.feed_forward(
      source,
      target,
      model_dims,
      self.shared_hidden_dims,
      has_gates=self._has_gates,
      has_bias=self.shared_has_bias,
    )

  def _fused_weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of experts whose tensors are those of all."""
    names, experts, hidden_dims = (
      self.tensors,
      self.num_experts,
      self.hidden_dims,
    )
    axes = (0, 2, 1) if names.fused_outputs_first else (0, 1, 2)

    def layout(
      tensor: str, variable: str, inputs: int, outputs: int
    ) -> WeightLayout:
      sizes = (experts, inputs, outputs)
      shape = tuple(sizes[axis] for axis in axes)
      return weight_layouts.split(
        f'{source}.{tensor}', f'{target}/{variable}', shape, shape, axes
      )

    for first, variable in ((0, 'wi_gate_0'), (hidden_dims, 'wi_0')):
      part = [slice(None), slice(None), slice(first, first + hidden_dims)]
      yield layout(names.up, variable, model_dims, 2 * hidden_dims).take(
        *(part[axis] for axis in axes)
      )
    yield layout(names.down, 'wo_0', hidden_dims, model_dims)

  def _expert_weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of experts with tensors of their own."""
    names, hidden_dims = self.tensors, self.hidden_dims
    gate = (names.gate, 'wi_gate_0', hidden_dims, model_dims)
    for projection, variable, outputs, inputs in (
      *([gate] if self._has_gates else []),
      (names.up, 'wi_0', hidden_dims, model_dims),
      (names.down, 'wo_0', model_dims, hidden_dims),
    ):
      for i in range(self.num_experts):
        yield dataclasses.replace(
          weight_layouts.transposed(
            f'{source}.{i}.{projection}.weight',
            f'{target}/{variable}',
            outputs,
            inputs,
          ),
          is_expert=True,
        )
