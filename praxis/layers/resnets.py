# SPDX-License-Identifier: Apache-2.0
"""Residual networks for images (ResNet, arXiv:1512.03385)."""

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
  normalizations,
  stochastics,
)

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class ResNetBlock(base_layer.BaseLayer):
  """Bottleneck block: 1x1, k x k and 1x1 convolutions with a shortcut.

  The middle convolutions have output_dim / 4 channels. The shortcut is a 1x1
  convolution if channels or sizes change, else the identity.
  """

  # Input and output channels.
  input_dim: int = 0
  output_dim: int = 0
  # Template of all convolutions.
  conv_params: LayerTpl = template_field(convolutions.ConvBNAct)
  # Filter size k and stride of the strided convolution.
  kernel_size: int = 3
  stride: int = 1
  # Activation between convolutions, and after the residual sum.
  activation_tpl: LayerTpl = template_field(activations.ReLU)
  # Probability of dropping the residual branch of an example in training
  # (stochastic depth, https://arxiv.org/abs/1603.09382).
  residual_droppath_prob: float = 0.0
  # Initializes the scale of the last batch norm to 0, so that the block starts
  # as the shortcut (https://arxiv.org/abs/1706.02677, section 5.1).
  zero_init_residual: bool = False

  def setup(self) -> None:
    self._check_positive('input_dim', 'output_dim', 'kernel_size', 'stride')
    body = self._body()
    body[-1] = self._last_conv(body[-1])
    self.create_children('body', body)
    if self._has_shortcut_conv:
      shortcut = conv_stages.square_conv(
        self, 1, self.input_dim, self.output_dim, self.stride
      )
      self.create_child('shortcut', _linear(shortcut))
    if self.residual_droppath_prob > 0:
      droppath = pax_fiddle.Config(
        stochastics.StochasticResidual,
        survival_prob=1.0 - self.residual_droppath_prob,
      )
      self.create_child('residual_droppath', droppath)
    self.create_child('postact', self.activation_tpl.clone())

  def _body(self) -> list[LayerTpl]:
    """Returns the convolutions; `setup` removes the last activation."""
    if self.output_dim % 4:
      raise ValueError(
        f'output_dim of {type(self).__name__} must be a multiple of 4, since '
        'the middle convolutions have output_dim / 4 channels, got '
        f'{self.output_dim}'
      )
    middle = self.output_dim // 4
    return [
      conv_stages.square_conv(self, 1, self.input_dim, middle),
      conv_stages.square_conv(
        self, self.kernel_size, middle, middle, self.stride
      ),
      conv_stages.square_conv(self, 1, middle, self.output_dim),
    ]

  def _last_conv(self, conv: LayerTpl) -> LayerTpl:
    """Returns `conv` without activation and with the requested scale."""
    if self.zero_init_residual:
      if conv.batch_norm_tpl is None:
        raise ValueError(
          'zero_init_residual=True needs batch normalization, got '
          'conv_params.batch_norm_tpl=None'
        )
      # The scale of BatchNorm is 1 + gamma.
      conv.batch_norm_tpl.gamma_init = WeightInit.Constant(-1.0)
    return _linear(conv)

  @property
  def _has_shortcut_conv(self) -> bool:
    return self.input_dim != self.output_dim or self.stride != 1

  def __call__(
    self, inputs: Float[Array, 'B H W I']
  ) -> Float[Array, 'B U V O']:
    """Returns the output; height and width are divided by the stride."""
    outputs = inputs
    for conv in self.body:
      outputs = conv(outputs)
    shortcut = self.shortcut(inputs) if self._has_shortcut_conv else inputs
    if self.residual_droppath_prob > 0:
      outputs = self.residual_droppath(shortcut, outputs)
    else:
      outputs = shortcut + outputs
    return self.postact(outputs)


class ResNetBasicBlock(ResNetBlock):
  """Basic block: two k x k convolutions with a shortcut."""

  def _body(self) -> list[LayerTpl]:
    size, output = self.kernel_size, self.output_dim
    return [
      conv_stages.square_conv(self, size, self.input_dim, output, self.stride),
      conv_stages.square_conv(self, size, output, output),
    ]


class ResNet(conv_stages.ConvStages):
  """Residual network; ResNet-50 by default."""

  # Convolution of entry and blocks.
  conv_params: LayerTpl = template_field(
    convolutions.ConvBNAct,
    batch_norm_tpl=pax_fiddle.Config(normalizations.BatchNorm, decay=0.9),
    params_init=WeightInit.GaussianSqrtFanOut(1.4141),
  )
  # Block of the stages.
  block_params: LayerTpl = template_field(ResNetBlock)
  # Filter height, width and input channels of the entry convolution.
  entryflow_conv_kernel: Sequence[int] = (7, 7, 3)
  # Returns the feature maps of all stages as {2 + stage: features}.
  return_block_features: bool = False
  # Ends the entry with a 3x3 max pool of stride 2.
  entry_max_pool: bool = True

  @classmethod
  def HParamsResNet5(cls) -> pax_fiddle.Config[ResNet]:
    """Returns a network of one small block, for tests."""
    return cls.config(strides=[1], channels=[16], blocks=[1], kernels=[1])

  @classmethod
  def HParamsResNet18(cls) -> pax_fiddle.Config[ResNet]:
    """Returns ResNet-18, of basic blocks."""
    return cls._basic(blocks=[2, 2, 2, 2])

  @classmethod
  def HParamsResNet34(cls) -> pax_fiddle.Config[ResNet]:
    """Returns ResNet-34, of basic blocks."""
    return cls._basic(blocks=[3, 4, 6, 3])

  @classmethod
  def HParamsResNet50(cls) -> pax_fiddle.Config[ResNet]:
    """Returns ResNet-50."""
    return cls.config()

  @classmethod
  def HParamsResNet56(cls) -> pax_fiddle.Config[ResNet]:
    """Returns ResNet-56."""
    return cls.config(blocks=[3, 3, 9, 3])

  @classmethod
  def HParamsResNet83(cls) -> pax_fiddle.Config[ResNet]:
    """Returns ResNet-83."""
    return cls.config(blocks=[3, 3, 18, 3])

  @classmethod
  def HParamsResNet101(cls) -> pax_fiddle.Config[ResNet]:
    """Returns ResNet-101."""
    return cls.config(blocks=[3, 4, 23, 3])

  @classmethod
  def HParamsResNet152(cls) -> pax_fiddle.Config[ResNet]:
    """Returns ResNet-152."""
    return cls.config(blocks=[3, 8, 36, 3])

  @classmethod
  def _basic(cls, blocks: Sequence[int]) -> pax_fiddle.Config[ResNet]:
    return cls.config(
      channels=(64, 128, 256, 512),
      block_params=pax_fiddle.Config(ResNetBasicBlock),
      blocks=blocks,
    )

  def _entry_filter_shape(self) -> Sequence[int]:
    # The entry has the width of the middle of the first bottleneck.
    bottleneck_ratio = 4 if self.block_params.cls is ResNetBlock else 1
    return (*self.entryflow_conv_kernel, self.channels[0] // bottleneck_ratio)

  def __call__(
    self, inputs: Float[Array, 'B H W C']
  ) -> Float[Array, 'B ...'] | dict[int, Float[Array, 'B U V O']]:
    """Returns the pooled features, or the feature maps of all stages."""
    outputs = self.entryflow_conv(inputs)
    if self.entry_max_pool:
      outputs, _ = self.entryflow_maxpool(outputs)
    features = {}
    for stage in range(len(self.blocks)):
      outputs = self._stage(stage, outputs)
      features[2 + stage] = outputs
    return features if self.return_block_features else self._pool(outputs)


def _linear(conv: LayerTpl) -> LayerTpl:
  return conv.set(activation_tpl=pax_fiddle.Config(activations.Identity))
