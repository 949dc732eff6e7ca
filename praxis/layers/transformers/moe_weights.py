# SPDX-License-Identifier: Apache-2.0
"""The weights of a mixture of experts.

Shapes: E experts, M model and H hidden dimension.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pytypes
from praxis.layers.transformers import feed_forward_block

SplitDimsMapping = pytypes.SplitDimsMapping


class MoeWeights(feed_forward_block.FeedForwardBlock):
  """A feed-forward block with a gate, and two or three weights an expert."""

  num_experts: int = 0
  # Into how many variables the weights are split along the hidden dimension.
  expert_weight_shards: int = 1
  # Experts start by their fan-in unless told otherwise.
  internal_gshard_variance_scaling_fan_in_init: bool = True
  # Whether initialisers see the model and hidden dimension as fans.
  explicit_fan_in_fan_out_axes: bool = False

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # Of the gate and of the experts' first and second weights.
    me: SplitDimsMapping = None
    emh: SplitDimsMapping = None
    ehm: SplitDimsMapping = None

  def _create_weights(self) -> None:
    self._check_positive('input_dims', 'hidden_dims', 'num_experts')
    if self.hidden_dims % self.expert_weight_shards:
      raise ValueError(
        f'expert_weight_shards must divide hidden_dims={self.hidden_dims}, got '
        f'{self.expert_weight_shards}'
      )
    model = self.input_dims
    hidden = self.hidden_dims // self.expert_weight_shards
    split = self.weight_split_dims_mapping
    gate = self._weight_hparams([model, self.num_experts], split.me, model)
    self.create_variable('gate', gate)
    names = ['wi', 'wi_gate'] if self.use_gated_activation else ['wi']
    for i in range(self.expert_weight_shards):
      for name in names:
        shape = [self.num_experts, model, hidden]
        weight = self._weight_hparams(shape, split.emh, model)
        self.create_variable(f'{name}_{i}', weight)
      shape = [self.num_experts, hidden, model]
      weight = self._weight_hparams(shape, split.ehm, self.hidden_dims)
      self.create_variable(f'wo_{i}', weight)

  def _weight_hparams(
    self, shape: list[int], split: SplitDimsMapping, fan_in: int
  ) -> base_layer.WeightHParams:
    explicit = self.explicit_fan_in_fan_out_axes and len(shape) == 3
    return base_layer.WeightHParams(
      shape=shape,
      init=self._fan_in_init(fan_in),
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=split,
      fan_in_axes=[-2] if explicit else None,
      fan_out_axes=[-1] if explicit else None,
    )

  def _input_weights(self) -> list[Float[Array, 'E M H']]:
    """Returns the first weight, and that of the gated activation if any."""
    names = ['wi', 'wi_gate'] if self.use_gated_activation else ['wi']
    return [self._joined(name, 2) for name in names]

  def _output_weight(self) -> Float[Array, 'E H M']:
    return self._joined('wo', 1)

  def _joined(self, name: str, hidden_axis: int) -> Float[Array, 'E _ _']:
    shards = range(self.expert_weight_shards)
    weights = [getattr(self.theta, f'{name}_{i}') for i in shards]
    if len(weights) == 1:
      return weights[0]
    return jnp.concatenate(weights, axis=hidden_axis)
