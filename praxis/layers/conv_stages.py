# SPDX-License-Identifier: Apache-2.0
"""Image networks of an entry convolution, stages of blocks and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.layers import poolings

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class ConvStages(base_layer.BaseLayer):
  """Base of image networks: entry convolution, max pool, stages, pooling.

  The first block of a stage has the stride of the stage, all others stride 1.
  Subclasses set the default templates, and call the stages.
  """

  # Convolution of the entry; also that of the blocks if they have conv_params.
  conv_params: LayerTpl = pax_fiddle.template_field(None)
  # Block of the stages.
  block_params: LayerTpl = pax_fiddle.template_field(None)
  # Stride, output channels, number of blocks and filter size of each stage.
  strides: Sequence[int] = (1, 2, 2, 2)
  channels: Sequence[int] = (256, 512, 1024, 2048)
  blocks: Sequence[int] = (3, 4, 6, 3)
  kernels: Sequence[int] = (3, 3, 3, 3)
  # Filter size and stride of the entry convolution.
  entryflow_conv_kernel: Sequence[int] = (7, 7)
  entryflow_conv_stride: Sequence[int] = (2, 2)
  # Pooling of the last stage; None returns its feature map.
  output_spatial_pooling_params: LayerTpl | None = pax_fiddle.template_field(
    poolings.GlobalPooling, pooling_dims=(1, 2)
  )

  def setup(self) -> None:
    check_equal_lengths(
      self, ('strides', 'channels', 'blocks', 'kernels'), 'stage'
    )
    filter_shape = self._entry_filter_shape()
    conv = self.conv_params.clone().set(
      filter_shape=filter_shape, filter_stride=self.entryflow_conv_stride
    )
    self.create_child('entryflow_conv', conv)
    pool = pax_fiddle.Config(
      poolings.Pooling, window_shape=(3, 3), window_stride=(2, 2)
    )
    self.create_child('entryflow_maxpool', pool)
    self._create_blocks(filter_shape[-1])
    if self.output_spatial_pooling_params is not None:
      self.create_child(
        'output_spatial_pooling', self.output_spatial_pooling_params
      )

  def _entry_filter_shape(self) -> Sequence[int]:
    """Returns the filter shape [H, W, I, O] of the entry convolution."""
    raise NotImplementedError(
      f'{type(self).__name__} does not define _entry_filter_shape'
    )

  def _block_tpl(self) -> LayerTpl:
    """Returns the Config shared by all blocks."""
    block = self.block_params.clone()
    if hasattr(block, 'conv_params'):
      block.conv_params = self.conv_params.clone()
    return block

  def _create_blocks(self, input_dim: int) -> None:
    block_tpl = self._block_tpl()
    for stage, channels in enumerate(self.channels):
      for i in range(self.blocks[stage]):
        block = block_tpl.clone().set(
          input_dim=input_dim,
          output_dim=channels,
          kernel_size=self.kernels[stage],
          stride=1 if i else self.strides[stage],
        )
        self.create_child(_block_name(stage, i), block)
        input_dim = channels

  def _stage(
    self, stage: int, inputs: Float[Array, 'B H W I']
  ) -> Float[Array, 'B U V O']:
    """Returns the output of a stage."""
    outputs = inputs
    for i in range(self.blocks[stage]):
      outputs = getattr(self, _block_name(stage, i))(outputs)
    return outputs

  def _pool(self, inputs: Float[Array, 'B H W O']) -> Float[Array, 'B ...']:
    if self.output_spatial_pooling_params is None:
      return inputs
    return self.output_spatial_pooling(inputs)


def check_equal_lengths(
  layer: base_layer.BaseLayer, fields: Sequence[str], unit: str
) -> None:
  """Checks that sequence fields have the same length.

  Args:
    layer: owner of the fields.
    fields: names of the fields.
    unit: the unit that an entry describes, for the message.

  Raises:
    ValueError: the lengths differ.
  """
  lengths = {name: len(getattr(layer, name)) for name in fields}
  if len(set(lengths.values())) != 1:
    raise ValueError(
      f'{", ".join(fields)} of {type(layer).__name__} {layer.name!r} must be '
      f'equally long, one entry per {unit}, got lengths {lengths}'
    )


@runtime_checkable
class ConvBlock(Protocol):
  """A block of convolutions, each followed by the activation."""

  conv_params: LayerTpl
  activation_tpl: LayerTpl


def square_conv(
  block: ConvBlock,
  size: int,
  input_dim: int,
  output_dim: int,
  stride: int = 1,
) -> LayerTpl:
  """Returns the Config of an activated convolution with a square filter.

  Args:
    block: owner of the templates of convolution and activation.
    size: height and width of the filter.
    input_dim: input channels.
    output_dim: output channels.
    stride: stride of both dimensions.
  """
  return block.conv_params.clone().set(
    filter_shape=(size, size, input_dim, output_dim),
    filter_stride=(stride, stride),
    activation_tpl=block.activation_tpl.clone(),
  )


def _block_name(stage: int, block: int) -> str:
  return f'stage_{stage}_block_{block}'
