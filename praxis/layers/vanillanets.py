# SPDX-License-Identifier: Apache-2.0
"""Image networks without shortcuts and batch normalization.

References: Deep learning without shortcuts: shaping the kernel with tailored
rectifiers, https://arxiv.org/abs/2203.08120
"""

from __future__ import annotations

import math

import jax
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightInit
from praxis.layers import convolutions
from praxis.layers.conv_stages import ConvStages

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


def tailored_lrelu(
  negative_slope: float, x: Float[Array, '*shape']
) -> Float[Array, '*shape']:
  """Returns the tailored leaky ReLU of `x`.

  The gain √(2 / (1 + negative_slope²)) preserves the second moment of standard
  normal inputs.
  """
  gain = math.sqrt(2.0 / (1 + negative_slope**2))
  return gain * jax.nn.leaky_relu(x, negative_slope=negative_slope)


class VanillaBlock(base_layer.BaseLayer):
  """Bottleneck of 1x1, k x k and 1x1 convolutions, each activated."""

  # Input and output channels.
  input_dim: int = 0
  output_dim: int = 0
  # Template of all convolutions.
  conv_params: LayerTpl = template_field(
    convolutions.Conv2D,
    bias=True,
    params_init=WeightInit.ScaledDeltaOrthogonal(1.0),
  )
  # Filter size k and stride of the middle convolution.
  kernel_size: int = 3
  stride: int = 1
  # Negative slope of the tailored leaky ReLU.
  negative_slope: float = 0.4

  def setup(self) -> None:
    if self.input_dim <= 0 or self.output_dim < 4:
      raise ValueError(
        f'VanillaBlock {self.name!r} needs input_dim > 0 and output_dim >= 4, '
        f'got {self.input_dim} and {self.output_dim}'
      )
    middle, size = self.output_dim // 4, self.kernel_size
    shapes = (
      (1, 1, self.input_dim, middle),
      (size, size, middle, middle),
      (1, 1, middle, self.output_dim),
    )
    strides = (1, self.stride, 1)
    body = [
      self.conv_params.clone().set(filter_shape=shape, filter_stride=(s, s))
      for shape, s in zip(shapes, strides, strict=True)
    ]
    self.create_children('body', body)

  def __call__(
    self, inputs: Float[Array, 'B H W I']
  ) -> Float[Array, 'B U V O']:
    """Returns the output; height and width are divided by the stride."""
    outputs = inputs
    for conv in self.body:
      outputs = tailored_lrelu(self.negative_slope, conv(outputs))
    return outputs


class VanillaNet(ConvStages):
  """ResNet without shortcuts; 50 layers by default."""

  # Convolution of entry and blocks.
  conv_params: LayerTpl = template_field(
    convolutions.Conv2D,
    bias=True,
    params_init=WeightInit.ScaledDeltaOrthogonal(1.0),
  )
  # Block of the stages.
  block_params: LayerTpl = template_field(VanillaBlock)
  # Negative slope of the tailored leaky ReLU.
  negative_slope: float = 0.4

  @classmethod
  def HParamsVanillaNet5(cls) -> pax_fiddle.Config[VanillaNet]:
    """Returns a network of one small block, for tests."""
    return cls.config(strides=[1], channels=[16], blocks=[1], kernels=[1])

  @classmethod
  def HParamsVanillaNet50(cls) -> pax_fiddle.Config[VanillaNet]:
    """Returns VanillaNet-50."""
    return cls.config()

  @classmethod
  def HParamsVanillaNet101(cls) -> pax_fiddle.Config[VanillaNet]:
    """Returns VanillaNet-101."""
    return cls.config(blocks=[3, 4, 23, 3])

  @classmethod
  def HParamsVanillaNet152(cls) -> pax_fiddle.Config[VanillaNet]:
    """Returns VanillaNet-152."""
    return cls.config(blocks=[3, 8, 36, 3])

  def _entry_filter_shape(self) -> tuple[int, ...]:
    return (*self.entryflow_conv_kernel, 3, self.channels[0] // 4)

  def _block_tpl(self) -> LayerTpl:
    return super()._block_tpl().set(negative_slope=self.negative_slope)

  def __call__(self, inputs: Float[Array, 'B H W 3']) -> Float[Array, 'B ...']:
    """Returns the pooled features of the last stage."""
    entry = self.entryflow_conv(inputs)
    outputs = tailored_lrelu(self.negative_slope, entry)
    outputs, _ = self.entryflow_maxpool(outputs)
    for stage in range(len(self.blocks)):
      outputs = self._stage(stage, outputs)
    return self._pool(outputs)
