# SPDX-License-Identifier: Apache-2.0
"""Convolution module of the Conformer (arXiv:2005.08100, section 2.2)."""

from __future__ import annotations

import math

import jax
from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import WeightInit
from praxis.layers import activations, linears, normalizations, stochastics
from praxis.layers.convolutions.depthwise import DepthwiseConv1D

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class LightConv1D(base_layer.BaseLayer):
  """Convolution module of the Conformer with a residual connection.

  Layer norm, gated linear unit, depthwise convolution, normalization,
  activation, linear layer, dropout.

  References: Conformer, https://arxiv.org/abs/2005.08100, section 2.2
  """

  # Input and output dimension, D.
  input_dims: int | None = None
  # Filter size of the depthwise convolution.
  kernel_size: int | None = None
  # Activation after `conv_norm_layer_tpl`.
  conv_activation_tpl: LayerTpl = template_field(activations.Swish)
  # Dropout rate of the output of the last linear layer.
  dropout_prob: float = 0.0
  # Sublayers in execution order.
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)
  linear_start_tpl: LayerTpl = template_field(linears.FeedForward)
  depthwise_conv_tpl: LayerTpl = template_field(DepthwiseConv1D)
  conv_norm_layer_tpl: LayerTpl = template_field(normalizations.BatchNorm)
  linear_end_tpl: LayerTpl = template_field(linears.FeedForward)
  dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  # Makes the depthwise convolution causal.
  is_causal: bool = False
  # Passes [B, T, 1, D] to `conv_norm_layer_tpl`, e.g. to a group norm of
  # input_rank=4.
  use_2d_conv_norm: bool = False

  class WeightSharding(base_layer.WeightSharding):
    # Weights of the linear layers, and the depthwise filter.
    df: pytypes.SplitDimsMapping = None
    him: pytypes.SplitDimsMapping = None

  class ActivationSharding(base_layer.ActivationSharding):
    # Activations between the linear layers, and the output of the last one.
    blf: pytypes.SplitDimsMapping = None
    bld: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    self._check_positive('input_dims', 'kernel_size')
    weights = self.weight_split_dims_mapping
    outputs = self.activation_split_dims_mapping
    self.create_child('ln', self.ln_tpl.clone().set(dim=self.input_dims))
    start = self._linear(self.linear_start_tpl, weights.df, outputs.blf)
    self.create_child('linear_start_act', start)
    self.create_child('linear_start_gated', start)
    end = self._linear(
      self.linear_end_tpl, weights.df and weights.df[::-1], outputs.bld
    )
    self.create_child('linear_end', end)
    conv = self.depthwise_conv_tpl.clone().set(
      filter_shape=(self.kernel_size, self.input_dims, 1),
      is_causal=self.is_causal,
    )
    conv.weight_split_dims_mapping.him = weights.him
    self.create_child('depthwise_conv1d', conv)
    norm = self.conv_norm_layer_tpl.clone().set(dim=self.input_dims)
    self.create_child('conv_norm', norm)
    self.create_child('conv_activation', self.conv_activation_tpl.clone())
    dropout = self.dropout_tpl.clone().set(keep_prob=1.0 - self.dropout_prob)
    self.create_child('dropout', dropout)

  def _linear(
    self,
    tpl: LayerTpl,
    weight: pytypes.SplitDimsMapping,
    output: pytypes.SplitDimsMapping,
  ) -> LayerTpl:
    """Returns a linear layer [D, D] with Xavier scale √1.5."""
    linear = tpl.clone().set(
      input_dims=self.input_dims,
      output_dims=self.input_dims,
      activation_tpl=pax_fiddle.Config(activations.Identity),
      params_init=WeightInit.Xavier(math.sqrt(3 / 2)),
    )
    if weight is not None:
      linear.weight_split_dims_mapping.wt = weight
    linear.activation_split_dims_mapping.out = output
    return linear

  def __call__(
    self, inputs: Float[Array, 'B T D'], paddings: Num[Array, 'B T']
  ) -> Float[Array, 'B T D']:
    """Returns the inputs plus the output of the module.

    Args:
      inputs: features.
      paddings: 1 for padded steps; the convolution and the normalizations
        ignore them.
    """
    mapping = self.activation_split_dims_mapping.blf
    x = self.ln(inputs, paddings)
    x = self.linear_start_act(x) * jax.nn.sigmoid(self.linear_start_gated(x))
    x = self.shard(self.depthwise_conv1d(x, paddings), mapping)
    x = self.shard(self._normalize(x, paddings), mapping)
    x = self.linear_end(self.conv_activation(x))
    return inputs + self.dropout(x)

  def _normalize(
    self, x: Float[Array, 'B T D'], paddings: Num[Array, 'B T']
  ) -> Float[Array, 'B T D']:
    if self.use_2d_conv_norm:
      return self.conv_norm(x[:, :, None], paddings)[:, :, 0]
    return self.conv_norm(x, paddings)
