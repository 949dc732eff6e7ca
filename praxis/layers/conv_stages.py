# SPDX-License-Identifier: Apache-2.0
"""What image networks share: an entry, stages of blocks, a pooling."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.layers import poolings

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class ConvStages(base_layer.BaseLayer):
  """Stages of equal blocks; the first of a stage has its stride.

  Subclasses add `conv_params`, which entry and blocks are made of, and
  `block_params`, and say what the entry is.
  """

  # Of each stage: stride, channels that come out, blocks, size of the filters.
  strides: Sequence[int] = (1, 2, 2, 2)
  channels: Sequence[int] = (256, 512, 1024, 2048)
  blocks: Sequence[int] = (3, 4, 6, 3)
  kernels: Sequence[int] = (3, 3, 3, 3)
  # Size of the filter of the first convolution, and how far it moves.
  entryflow_conv_kernel: Sequence[int] = (7, 7)
  entryflow_conv_stride: Sequence[int] = (2, 2)
  # Pools what the stages give; None leaves the image.
  output_spatial_pooling_params: LayerTpl | None = pax_fiddle.template_field(
    poolings.GlobalPooling, pooling_dims=(1, 2)
  )

  def setup(self) -> None:
    lists = ('strides', 'channels', 'blocks', 'kernels')
    sizes = {name: len(getattr(self, name)) for name in lists}
    if len(set(sizes.values())) != 1:
      raise ValueError(
        f'{", ".join(lists)} of {type(self).__name__} {self.name!r} must be '
        f'equally long, an entry for each stage, got lengths {sizes}'
      )
    entry = self._entry_filter()
    conv = self.conv_params.clone().set(
      filter_shape=entry, filter_stride=self.entryflow_conv_stride
    )
    self.create_child('entryflow_conv', conv)
    pool = pax_fiddle.Config(
      poolings.Pooling, window_shape=(3, 3), window_stride=(2, 2)
    )
    self.create_child('entryflow_maxpool', pool)
    self._create_blocks(entry[-1])
    if self.output_spatial_pooling_params is not None:
      self.create_child(
        'output_spatial_pooling', self.output_spatial_pooling_params
      )

  def _entry_filter(self) -> Sequence[int]:
    """Returns the filter_shape of the entry."""
    raise NotImplementedError(f'{type(self).__name__} defines no entry')

  def _block(self) -> LayerTpl:
    """Returns the Config that all blocks have in common."""
    block = self.block_params.clone()
    if hasattr(block, 'conv_params'):
      block.conv_params = self.conv_params.clone()
    return block

  def _create_blocks(self, input_dim: int) -> None:
    common = self._block()
    for stage, channels in enumerate(self.channels):
      for i in range(self.blocks[stage]):
        block = common.clone().set(
          input_dim=input_dim,
          output_dim=channels,
          kernel_size=self.kernels[stage],
          stride=1 if i else self.strides[stage],
        )
        self.create_child(_name(stage, i), block)
        input_dim = channels

  def _stage(
    self, stage: int, inputs: Float[Array, 'B H W I']
  ) -> Float[Array, 'B U V O']:
    """Returns what the blocks of a stage make of the inputs."""
    outputs = inputs
    for i in range(self.blocks[stage]):
      outputs = getattr(self, _name(stage, i))(outputs)
    return outputs

  def _pool(self, inputs: Float[Array, 'B H W O']) -> Float[Array, 'B ...']:
    if self.output_spatial_pooling_params is None:
      return inputs
    return self.output_spatial_pooling(inputs)


def conv(
  block: base_layer.BaseLayer,
  size: int,
  input_dim: int,
  output_dim: int,
  stride: int = 1,
) -> LayerTpl:
  """Returns the Config of a square convolution, as the block has them."""
  return block.conv_params.clone().set(
    filter_shape=(size, size, input_dim, output_dim),
    filter_stride=(stride, stride),
    activation_tpl=block.activation_tpl.clone(),
  )


def _name(stage: int, block: int) -> str:
  return f'stage_{stage}_block_{block}'
