# SPDX-License-Identifier: Apache-2.0
"""MobileNetV2 (arXiv:1801.04381)."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightInit
from praxis.layers import (
  activations,
  conv_stages,
  convolutions,
  linears,
  normalizations,
  poolings,
  sequential,
)

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field

# Channels of the entry convolution at multiplier 1.
_ENTRY_CHANNELS = 32


class InvertedResidualBlock(base_layer.BaseLayer):
  """Inverted residual with a linear bottleneck (section 3 of the paper).

  1x1 expansion, depthwise convolution, linear 1x1 projection. The residual
  connection exists if input and output have the same shape.
  """

  # Input and output channels.
  input_dim: int = 0
  output_dim: int = 0
  # Expansion factor of the channels; 1 omits the expansion convolution.
  expansion: int = 6
  # Template of all three convolutions.
  conv_params: LayerTpl = template_field(convolutions.ConvBNAct)
  # Filter size and stride of the depthwise convolution.
  kernel_size: int = 3
  stride: int = 1
  # Activation of the expansion and of the depthwise convolution.
  activation_tpl: LayerTpl = template_field(activations.ReLU6)

  def setup(self) -> None:
    self._check_positive('input_dim', 'output_dim', 'expansion', 'stride')
    size, inner = self.kernel_size, self.expansion * self.input_dim
    # A filter with one input channel makes the convolution depthwise.
    body = [
      conv_stages.square_conv(self, size, 1, inner, self.stride),
      conv_stages.square_conv(self, 1, inner, self.output_dim).set(
        activation_tpl=pax_fiddle.Config(activations.Identity)
      ),
    ]
    if self.expansion != 1:
      body.insert(0, conv_stages.square_conv(self, 1, self.input_dim, inner))
    self.create_child('body', _sequential(body))

  def __call__(
    self, inputs: Float[Array, 'B H W I']
  ) -> Float[Array, 'B U V O']:
    """Returns the output; height and width are divided by the stride."""
    outputs = self.body(inputs)
    if self.input_dim == self.output_dim and self.stride == 1:
      outputs = outputs + inputs
    return outputs


class MobileNet(base_layer.BaseLayer):
  """Blocks between two convolutions, then a pooling, and a classifier."""

  # Convolution of entry, blocks and exit.
  conv_params: LayerTpl = template_field(
    convolutions.ConvBNAct,
    activation_tpl=pax_fiddle.Config(activations.ReLU6),
    batch_norm_tpl=pax_fiddle.Config(normalizations.BatchNorm, decay=0.9),
    params_init=WeightInit.GaussianSqrtFanOut(1.4141),
  )
  # Template of the blocks.
  block_params: LayerTpl = template_field(InvertedResidualBlock)
  # Expansion factor, stride and output channels of each block.
  expansions: Sequence[int] = (1,) + 16 * (6,)
  strides: Sequence[int] = (1, 2, 1, 2, 1, 1, 2) + 6 * (1,) + (2, 1, 1, 1)
  channels: Sequence[int] = (
    (16,) + 2 * (24,) + 3 * (32,) + 4 * (64,) + 3 * (96,) + 3 * (160,) + (320,)
  )
  # Channels of the last convolution; a multiplier below 1 does not scale them.
  output_channels: int = 1280
  # Number of classes; 0 omits the classifier.
  num_classes: int = 0
  # Filter height, width and input channels of the entry convolution, and its
  # stride.
  entryflow_conv_kernel: Sequence[int] = (3, 3, 3)
  entryflow_conv_stride: Sequence[int] = (2, 2)
  # Pooling before the classifier; None keeps the feature map.
  output_spatial_pooling_params: LayerTpl | None = template_field(
    poolings.GlobalPooling, pooling_dims=(1, 2)
  )
  # Classifier.
  predict_params: LayerTpl = template_field(linears.FeedForward)
  # Width multiplier of the channels. Scaled channels are rounded to multiples
  # of divisible_by; those of entry and exit are at least min_depth.
  multiplier: float = 1.0
  divisible_by: int = 8
  min_depth: int = 8

  def setup(self) -> None:
    conv_stages.check_equal_lengths(
      self, ('expansions', 'strides', 'channels'), 'block'
    )
    entry = self._scaled(_ENTRY_CHANNELS, self.min_depth)
    body = [
      self._conv((*self.entryflow_conv_kernel, entry)).set(
        filter_stride=self.entryflow_conv_stride
      )
    ]
    block = self.block_params.clone()
    if hasattr(block, 'conv_params'):
      block.conv_params = self.conv_params.clone()
    widths = [
      entry,
      *(self._scaled(c, self.divisible_by) for c in self.channels),
    ]
    for i, expansion in enumerate(self.expansions):
      body.append(
        block.clone().set(
          input_dim=widths[i],
          output_dim=widths[i + 1],
          expansion=expansion,
          stride=self.strides[i],
        )
      )
    last = self.output_channels
    if self.multiplier > 1.0:
      last = self._scaled(last, self.min_depth)
    body.append(self._conv((1, 1, widths[-1], last)))
    if self.output_spatial_pooling_params is not None:
      body.append(self.output_spatial_pooling_params.clone())
    if self.num_classes:
      classifier = self.predict_params.clone()
      body.append(classifier.set(input_dims=last, output_dims=self.num_classes))
    self.create_child('body', _sequential(body))

  def _conv(self, filter_shape: Sequence[int]) -> LayerTpl:
    return self.conv_params.clone().set(
      filter_shape=tuple(filter_shape), filter_stride=(1, 1)
    )

  def _scaled(self, channels: int, min_channels: int) -> int:
    return _make_divisible(
      channels * self.multiplier, self.divisible_by, min_channels
    )

  def __call__(self, inputs: Float[Array, 'B H W C']) -> Float[Array, 'B ...']:
    """Returns features or logits: [B, D] if pooled, else [B, H', W', D]."""
    return self.body(inputs)


def _make_divisible(value: float, divisor: int, min_value: int) -> int:
  """Rounds to a multiple of `divisor`, at least 90% of `value`."""
  rounded = max(min_value, int(value + divisor / 2) // divisor * divisor)
  return rounded + divisor if rounded < 0.9 * value else rounded


def _sequential(layers: list[LayerTpl]) -> LayerTpl:
  return pax_fiddle.Config(sequential.Sequential, layers=layers)
