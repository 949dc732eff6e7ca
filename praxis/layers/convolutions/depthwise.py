# SPDX-License-Identifier: Apache-2.0
"""Convolutions over time of each channel by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
from jaxtyping import Array, Float, Num

from praxis import base_layer, py_utils, pytypes
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.convolutions.padding import causal_padding


class BaseDepthwiseConv1D(base_layer.BaseLayer):
  """A convolution over time of each channel; subclasses say how it is done."""

  # Size of the filter, channels of the input, outputs per channel.
  filter_shape: Sequence[int] = (0, 0, 0)
  # Whether there is a bias, and what it starts from.
  bias: bool = False
  bias_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )
  # Whether no output depends on a later step.
  is_causal: bool = False
  # Whether the filter is stored as that of a 2D convolution, [k, 1, I * M, 1],
  # as old checkpoints have it.
  use_2d_conv_weight_shape: bool = False
  # How far the taps of the filter are from each other.
  rhs_dilation_rate: int = 1

  def __call__(
    self,
    inputs: Float[Array, 'B T I'],
    paddings: Num[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T O']:
    """Returns the convolved inputs, in which padding counts as 0."""
    raise NotImplementedError(f'{type(self).__name__} defines no __call__')


class DepthwiseConv1D(BaseDepthwiseConv1D):
  """A depthwise convolution by `jax.lax`, of the same length as its input."""

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # The filter: its size, its input channels, its outputs.
    him: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    if len(self.filter_shape) != 3 or min(self.filter_shape) <= 0:
      raise ValueError(
        f'filter_shape of {type(self).__name__} {self.name!r} must be three '
        'positive numbers (size, channels, outputs per channel), got '
        f'{tuple(self.filter_shape)}'
      )
    if self.rhs_dilation_rate <= 0:
      raise ValueError(
        f'rhs_dilation_rate must be positive, got {self.rhs_dilation_rate}'
      )
    size, channels, multiplier = self.filter_shape
    shape = [size, 1, channels * multiplier]
    mapping = self.weight_split_dims_mapping.him
    if self.use_2d_conv_weight_shape:
      shape.append(1)
      mapping = mapping and [mapping[0], None, *mapping[1:]]
    self.create_variable(
      'w',
      WeightHParams(
        shape=shape,
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=mapping,
      ),
    )
    if self.bias:
      self.create_variable(
        'b', WeightHParams(shape=[channels * multiplier], init=self.bias_init)
      )

  def get_w(self) -> Float[Array, 'K 1 O']:
    """Returns the filter, whatever shape it is stored in."""
    w = self.theta.w
    return w[..., 0] if self.use_2d_conv_weight_shape else w

  def __call__(
    self,
    inputs: Float[Array, 'B T I'],
    paddings: Num[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T O']:
    """Returns the convolved inputs, in which padding counts as 0."""
    if inputs.shape[-1] != self.filter_shape[1]:
      raise ValueError(
        f'inputs must have {self.filter_shape[1]} channels, filter_shape[1], '
        f'got {inputs.shape}'
      )
    if paddings is not None:
      inputs = py_utils.apply_padding(inputs, paddings[:, :, None])
    before = causal_padding(self.filter_shape[0], self.rhs_dilation_rate)
    outputs = jax.lax.conv_general_dilated(
      inputs.astype(self.fprop_dtype),
      self.get_w(),
      window_strides=(1,),
      padding=[(before, 0)] if self.is_causal else 'SAME',
      rhs_dilation=(self.rhs_dilation_rate,),
      dimension_numbers=('NHC', 'HIO', 'NHC'),
      feature_group_count=self.filter_shape[1],
    )
    return outputs + self.theta.b if self.bias else outputs
