# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxtyping import Array, Float, Num

from praxis import base_layer, py_utils, pytypes
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.convolutions.convolve import convolve
from praxis.layers.convolutions.padding import causal_padding


class BaseDepthwiseConv1D(base_layer.BaseLayer):
  """Interface of depthwise convolutions over time."""

  # Filter size K, input channels I, and output channels per input channel.
  filter_shape: Sequence[int] = (0, 0, 0)
  # Adds a bias, initialized by `bias_init`.
  bias: bool = False
  bias_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )
  # Makes the convolution causal in time.
  is_causal: bool = False
  # Stores the filter as [K, 1, O, 1] instead of [K, 1, O], for checkpoints of
  # a 2D convolution.
  use_2d_conv_weight_shape: bool = False
  # Dilation of the filter.
  rhs_dilation_rate: int = 1

  def __call__(
    self,
    inputs: Float[Array, 'B T I'],
    paddings: Num[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T O']:
    """Returns the convolution; padded inputs are set to 0."""
    raise NotImplementedError(f'{type(self).__name__} defines no __call__')


class DepthwiseConv1D(BaseDepthwiseConv1D):
  """Depthwise convolution over time that keeps the length."""

  class WeightSharding(base_layer.WeightSharding):
    # The filter [K, 1, O].
    him: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    if len(self.filter_shape) != 3 or min(self.filter_shape) <= 0:
      raise ValueError(
        f'filter_shape of {type(self).__name__} {self.name!r} must be three '
        'positive numbers (filter size, input channels, output channels per '
        'input channel), got '
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
    """Returns the filter without the extra dimension of the 2D shape."""
    w = self.theta.w
    return w[..., 0] if self.use_2d_conv_weight_shape else w

  def __call__(
    self,
    inputs: Float[Array, 'B T I'],
    paddings: Num[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T O']:
    """Returns the convolution; padded inputs are set to 0.

    Args:
      inputs: features.
      paddings: 1 for padded steps; None is no padding.

    Raises:
      ValueError: the inputs do not have `filter_shape[1]` channels.
    """
    if inputs.shape[-1] != self.filter_shape[1]:
      raise ValueError(
        f'inputs must have {self.filter_shape[1]} channels, filter_shape[1], '
        f'got {inputs.shape}'
      )
    if paddings is not None:
      inputs = py_utils.apply_padding(inputs, paddings[:, :, None])
    before = causal_padding(self.filter_shape[0], self.rhs_dilation_rate)
    outputs = convolve(
      inputs.astype(self.fprop_dtype),
      self.get_w(),
      strides=(1,),
      padding=[(before, 0)] if self.is_causal else 'SAME',
      dilations=(self.rhs_dilation_rate,),
    )
    return outputs + self.theta.b if self.bias else outputs
