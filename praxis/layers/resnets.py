# SPDX-License-Identifier: Apache-2.0
"""Residual networks for images, https://arxiv.org/abs/1512.03385."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightInit
from praxis.layers import (
  activations,
  conv_stages,
  convolutions,
  normalizations,
  stochastics,
)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class ResNetBlock(base_layer.BaseLayer):
  """Adds three convolutions of the input to it: narrow, filter, widen."""

  # Channels of the input and of the output.
  input_dim: int = 0
  output_dim: int = 0
  # What the convolutions are.
  conv_params: LayerTpl = template_field(convolutions.ConvBNAct)
  # Size of the filter, and how far it moves.
  kernel_size: int = 3
  stride: int = 1
  # The activation between convolutions, and after the sum.
  activation_tpl: LayerTpl = template_field(activations.ReLU)
  # The probability that an example goes past the convolutions in training.
  residual_droppath_prob: float = 0.0
  # Whether the convolutions add 0 at first: the last scale starts as 0.
  # References: https://arxiv.org/abs/2105.07576
  zero_init_residual: bool = False

  def setup(self) -> None:
    self._check_positive('input_dim', 'output_dim', 'kernel_size', 'stride')
    body = self._body()
    body[-1] = self._last(body[-1])
    self.create_children('body', body)
    if self._is_reshaping:
      shortcut = conv_stages.conv(
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
    """Returns the convolutions; the last one's activation is dropped."""
    if self.output_dim % 4:
      raise ValueError(
        f'output_dim of {type(self).__name__} must be a multiple of 4, the '
        f'middle has a quarter of it, got {self.output_dim}'
      )
    middle = self.output_dim // 4
    return [
      conv_stages.conv(self, 1, self.input_dim, middle),
      conv_stages.conv(self, self.kernel_size, middle, middle, self.stride),
      conv_stages.conv(self, 1, middle, self.output_dim),
    ]

  def _last(self, conv: LayerTpl) -> LayerTpl:
    if self.zero_init_residual:
      if conv.batch_norm_tpl is None:
        raise ValueError(
          'zero_init_residual needs a normalisation to scale by 0, got '
          'conv_params.batch_norm_tpl=None'
        )
      # Its scale is 1 + gamma.
      conv.batch_norm_tpl.gamma_init = WeightInit.Constant(-1.0)
    return _linear(conv)

  @property
  def _is_reshaping(self) -> bool:
    return self.input_dim != self.output_dim or self.stride != 1

  def __call__(
    self, inputs: Float[Array, 'B H W I']
  ) -> Float[Array, 'B U V O']:
    """Returns the sum, sizes divided by the stride."""
    outputs = inputs
    for conv in self.body:
      outputs = conv(outputs)
    direct = self.shortcut(inputs) if self._is_reshaping else inputs
    if self.residual_droppath_prob > 0:
      outputs = self.residual_droppath(direct, outputs)
    else:
      outputs = direct + outputs
    return self.postact(outputs)


class ResNetBasicBlock(ResNetBlock):
  """Adds two convolutions of the input to it, both with the filter."""

  def _body(self) -> list[LayerTpl]:
    size, output = self.kernel_size, self.output_dim
    return [
      conv_stages.conv(self, size, self.input_dim, output, self.stride),
      conv_stages.conv(self, size, output, output),
    ]


class ResNet(conv_stages.ConvStages):
  """A residual network; by default the one of 50 layers."""

  # What entry and blocks are made of.
  conv_params: LayerTpl = template_field(
    convolutions.ConvBNAct,
    batch_norm_tpl=pax_fiddle.Config(normalizations.BatchNorm, decay=0.9),
    params_init=WeightInit.GaussianSqrtFanOut(1.4141),
  )
  # What the stages are stacks of.
  block_params: LayerTpl = template_field(ResNetBlock)
  # Height and width of the entry's filter, and channels of the image.
  entryflow_conv_kernel: Sequence[int] = (7, 7, 3)
  # Whether to return what each stage gives, {2 + stage: its output}.
  return_block_features: bool = False
  # Whether the entry ends with a maximum over windows of 3, 2 apart.
  entry_max_pool: bool = True

  @classmethod
  def HParamsResNet5(cls) -> pax_fiddle.Config[ResNet]:
    """Returns one small block, for tests."""
    return cls.config(strides=[1], channels=[16], blocks=[1], kernels=[1])

  @classmethod
  def HParamsResNet18(cls) -> pax_fiddle.Config[ResNet]:
    """Returns the network of 18 layers, of basic blocks."""
    return cls._basic(blocks=[2, 2, 2, 2])

  @classmethod
  def HParamsResNet34(cls) -> pax_fiddle.Config[ResNet]:
    """Returns the network of 34 layers, of basic blocks."""
    return cls._basic(blocks=[3, 4, 6, 3])

  @classmethod
  def HParamsResNet50(cls) -> pax_fiddle.Config[ResNet]:
    """Returns the network of 50 layers."""
    return cls.config()

  @classmethod
  def HParamsResNet56(cls) -> pax_fiddle.Config[ResNet]:
    """Returns the network of 56 layers."""
    return cls.config(blocks=[3, 3, 9, 3])

  @classmethod
  def HParamsResNet83(cls) -> pax_fiddle.Config[ResNet]:
    """Returns the network of 83 layers."""
    return cls.config(blocks=[3, 3, 18, 3])

  @classmethod
  def HParamsResNet101(cls) -> pax_fiddle.Config[ResNet]:
    """Returns the network of 101 layers."""
    return cls.config(blocks=[3, 4, 23, 3])

  @classmethod
  def HParamsResNet152(cls) -> pax_fiddle.Config[ResNet]:
    """Returns the network of 152 layers."""
    return cls.config(blocks=[3, 8, 36, 3])

  @classmethod
  def _basic(cls, blocks: Sequence[int]) -> pax_fiddle.Config[ResNet]:
    return cls.config(
      channels=(64, 128, 256, 512),
      block_params=pax_fiddle.Config(ResNetBasicBlock),
      blocks=blocks,
    )

  def _entry_filter(self) -> Sequence[int]:
    # The middle of a bottleneck is as wide as the entry.
    narrow = 4 if self.block_params.cls is ResNetBlock else 1
    return (*self.entryflow_conv_kernel, self.channels[0] // narrow)

  def __call__(
    self, inputs: Float[Array, 'B H W C']
  ) -> Float[Array, 'B ...'] | dict[int, Float[Array, 'B U V O']]:
    """Returns the pooled output of the last stage, or that of every stage."""
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
