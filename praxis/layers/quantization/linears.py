# SPDX-License-Identifier: Apache-2.0
"""Linear layers with quantized, optionally sparse or low-rank, weights."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import linears
from praxis.layers.quantization import low_rank_residual, quantized_layer_mixin

__getattr__ = module_getattr(__name__)

_EQUATION = '...y,yz->...z'


class Linear(linears.Linear, quantized_layer_mixin.SparseQuantizedLayerMixin):
  """A linear layer with one quantized matrix, or with two low-rank factors."""

  # Rank of the two factors that replace the matrix; -1: one matrix.
  rank: int = -1
  _PACK_4BIT_DIM = 0

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    names = ('w_a', 'w_b') if self.rank > 0 else ('w',)
    return dict.fromkeys(names, _EQUATION)

  def setup(self) -> None:
    if self.rank <= 0:
      super().setup()
      return
    for name, shape in (
      ('w_a', [self.input_dims, self.rank]),
      ('w_b', [self.rank, self.output_dims]),
    ):
      hparams = WeightHParams(
        shape=shape,
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      )
      self.create_variable(name, hparams)

  @property
  def _shards_scales(self) -> bool:
    return self.rank <= 0

  def __call__(self, inputs: Float[Array, '*B I']) -> Float[Array, '*B O']:
    if self.rank <= 0:
      return super().__call__(inputs)
    outputs = inputs
    for name in self._equations():
      weight = self._theta_value(name)
      outputs = self.multiply(name, _EQUATION, outputs, weight)
    mapping = linears.step_mapping(
      self.activation_split_dims_mapping, outputs.ndim
    )
    return base_layer.maybe_shard(outputs, mapping, self.mesh_axis_names)


class LinearLoRA(low_rank_residual.LowRankResidual, Linear):
  """A quantized Linear plus a float low-rank residual (LoRA)."""

  def _base_einsum(self) -> low_rank_residual.BaseEinsum:
    return low_rank_residual.BaseEinsum(
      equation=_EQUATION,
      weight_shape=(self.input_dims, self.output_dims),
      split=self.weight_split_dims_mapping.wt,
      norm_dims={'pre': self.input_dims, 'post': self.output_dims},
    )


class LinearActScaling(Linear):
  """A quantized Linear with a learned scale per input channel."""

  def setup(self) -> None:
    super().setup()
    scale = WeightHParams(
      shape=[self.input_dims], init=WeightInit.Constant(0.0)
    )
    self.create_variable('w_per_channel_act_max', scale)

  def __call__(self, inputs: Float[Array, '*B I']) -> Float[Array, '*B O']:
    return super().__call__(inputs * self.theta.w_per_channel_act_max)
