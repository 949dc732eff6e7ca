# SPDX-License-Identifier: Apache-2.0
"""A video VQ-VAE and the discriminator of its adversarial training.

References: MAGVIT-v2, https://arxiv.org/abs/2310.05737
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers import activations, convolutions, linears
from praxis.layers.video import enc_dec_3dcnn, quantizer
from praxis.nested_map import NestedMap

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class _Levels(base_layer.BaseLayer):
  """Base of encoder and decoder: levels of resolution of residual blocks."""

  # Channels of the first level, and the multiple of these at each level.
  filters: int = 128
  channel_multipliers: Sequence[int] = (1, 2, 2, 4)
  # Whether time is also halved, from each level to the next.
  temporal_downsample: Sequence[bool] = (False, True, True)
  # Channels of the latents.
  embedding_dim: int = 8
  # Number of residual blocks of a level.
  num_res_blocks: int = 4
  # The components.
  norm_tpl: LayerTpl = template_field(enc_dec_3dcnn.GroupNormSpatial)
  conv_tpl: LayerTpl = template_field(enc_dec_3dcnn.CausalConv)
  res_block_tpl: LayerTpl = template_field(enc_dec_3dcnn.ResBlock)
  activation_tpl: LayerTpl = template_field(activations.Swish)

  @property
  def _widths(self) -> list[int]:
    """Channels of each level."""
    return [self.filters * m for m in self.channel_multipliers]

  def _check(self) -> None:
    if self.num_res_blocks < 1:
      raise ValueError(
        f'num_res_blocks must be at least 1, got {self.num_res_blocks}'
      )
    between = len(self.channel_multipliers) - 1
    if len(self.temporal_downsample) != between:
      raise ValueError(
        f'temporal_downsample must have {between} entries, one less than '
        f'channel_multipliers, got {tuple(self.temporal_downsample)}'
      )

  def _time_stride(self, level: int) -> int:
    """Returns the time stride from a level to the next."""
    return 2 if self.temporal_downsample[level] else 1

  def _conv(
    self, size: int, input_dim: int, output_dim: int, *, bias: bool = True
  ) -> LayerTpl:
    shape = (size, size, size, input_dim, output_dim)
    return self.conv_tpl.clone().set(filter_shape=shape, bias=bias)

  def _create_blocks(self, level_dims: Iterable[tuple[int, int]]) -> None:
    """Creates the residual blocks of all levels.

    Args:
      level_dims: channels of the input and output of each level; its first
        block changes them.
    """
    blocks = []
    for input_dim, output_dim in level_dims:
      for dim in [input_dim, *[output_dim] * (self.num_res_blocks - 1)]:
        block = self.res_block_tpl.clone()
        block.set(input_dim=dim, output_dim=output_dim, use_conv_shortcut=False)
        blocks.append(block)
    self.create_children('res_blocks', blocks)

  def _create_end(self, input_dim: int, conv: LayerTpl) -> None:
    self.create_child('norm', self.norm_tpl.clone().set(dim=input_dim))
    self.create_child('activation', self.activation_tpl.clone())
    self.create_child('conv_last', conv)

  def _level(
    self, index: int, x: Float[Array, 'B T H W I']
  ) -> Float[Array, 'B T H W O']:
    """Returns the output of the blocks of level `index`."""
    first = index * self.num_res_blocks
    for block in self.res_blocks[first : first + self.num_res_blocks]:
      x = block(x)
    return x

  def _end(self, x: Float[Array, 'B T H W I']) -> Float[Array, 'B T H W O']:
    return self.conv_last(self.activation(self.norm(x)))


class Encoder(_Levels):
  """Encodes a video to latents; each level halves the resolution.

  Convolutions are causal in time, and the first frame is encoded on its own, so
  that an image is a video of one frame.
  """

  # Channels of the video.
  input_dim: int = 3
  # Whether strided convolutions halve the resolution; only True is supported.
  conv_downsample: bool = True

  def setup(self) -> None:
    self._check()
    if not self.conv_downsample:
      raise ValueError('conv_downsample must be True, got False')
    widths = self._widths
    first = self._conv(3, self.input_dim, self.filters, bias=False)
    self.create_child('conv_first', first)
    inputs = [self.filters, *widths]
    self._create_blocks(zip(inputs, [*widths, widths[-1]], strict=True))
    downsampling = [
      self._conv(4, width, width).set(
        filter_stride=(self._time_stride(i), 2, 2)
      )
      for i, width in enumerate(widths[:-1])
    ]
    self.create_children('conv_downsample_layers', downsampling)
    last = self._conv(1, widths[-1], self.embedding_dim)
    self._create_end(widths[-1], last)

  def __call__(
    self, inputs: Float[Array, 'B T H W C']
  ) -> Float[Array, 'B U V X D']:
    """Returns the latents.

    Raises:
      ValueError: the number of frames is not 1 + a multiple of the time stride.
    """
    time_stride = 2 ** sum(self.temporal_downsample)
    if inputs.ndim != 5 or (inputs.shape[1] - 1) % time_stride:
      raise ValueError(
        f'inputs must be [B, T, H, W, C] with T = 1 + k * {time_stride} '
        f'frames, so that none is lost, got shape {inputs.shape}'
      )
    x = self.conv_first(inputs)
    for i, downsample in enumerate([*self.conv_downsample_layers, None]):
      x = self._level(i, x)
      x = x if downsample is None else downsample(x)
    return self._end(self._level(len(self.channel_multipliers), x))


class Decoder(_Levels):
  """Decodes latents to a video; they also condition the norms of each level."""

  # Channels of the video.
  output_dim: int = 3
  # The norm that is conditioned on latents.
  cond_norm_tpl: LayerTpl = template_field(enc_dec_3dcnn.CondNormLayer)

  def setup(self) -> None:
    self._check()
    widths = self._widths[::-1]
    self.create_child(
      'conv_first', self._conv(3, self.embedding_dim, widths[0])
    )
    inputs = [widths[0], *widths[:-1]]
    first_level = (widths[0], widths[0])
    self._create_blocks([first_level, *zip(inputs, widths, strict=True)])
    norms = [
      self.cond_norm_tpl.clone().set(emb_dim=self.embedding_dim, dim=dim)
      for dim in inputs
    ]
    self.create_children('cond_norm_layers', norms)
    upsampling = [
      self._conv(3, width, width * 4 * stride)
      for width, stride in zip(widths[:-1], self._strides, strict=True)
    ]
    self.create_children('conv_upsample_layers', upsampling)
    last = self._conv(3, widths[-1], self.output_dim)
    self._create_end(widths[-1], last)

  @property
  def _strides(self) -> list[int]:
    """Time strides after each level but the last."""
    return [
      self._time_stride(i) for i in reversed(range(len(self._widths) - 1))
    ]

  def __call__(
    self, inputs: Float[Array, 'B U V X D']
  ) -> Float[Array, 'B T H W C']:
    """Returns the video."""
    latents, widths = inputs, self._widths[::-1]
    x = self._level(0, self.conv_first(inputs))
    for i, width in enumerate(widths):
      x = self._level(i + 1, self.cond_norm_layers[i](x, latents))
      if i == len(widths) - 1:
        break
      stride = self._strides[i]
      x = self.conv_upsample_layers[i](x)
      x = enc_dec_3dcnn.depth_to_space(x, stride, width)
      shape = (*x.shape[:-1], latents.shape[-1])
      latents = jax.image.resize(latents, shape, 'nearest', antialias=False)
      # The first latent frame is a single frame.
      x, latents = x[:, stride - 1 :], latents[:, stride - 1 :]
    return self._end(x)


class Discriminator(base_layer.BaseLayer):
  """A discriminator of real and generated videos, as in StyleGAN2.

  References: https://arxiv.org/abs/1912.04958
  """

  # Channels of the first convolution, and the multiple of these in each block.
  filters: int = 128
  channel_multipliers: Sequence[int] = (2, 4, 4, 4)
  # Size of the video.
  num_frames: int = 1
  image_height: int = 256
  image_width: int = 256
  input_dim: int = 3
  # Size of the blur filter before downsampling.
  blur_filter_size: int = 3
  # The components.
  conv_tpl: LayerTpl = template_field(convolutions.Conv3D)
  res_block_tpl: LayerTpl = template_field(enc_dec_3dcnn.DiscriminatorResBlock)
  activation_tpl: LayerTpl = template_field(activations.LeakyReLU)
  proj_tpl: LayerTpl = template_field(linears.MLPBlock)

  def setup(self) -> None:
    activation = self.activation_tpl.clone()
    if hasattr(activation, 'negative_slope'):
      activation.negative_slope = 0.2
    self.create_child('activation', activation)
    self.create_child('conv_first', self._conv(self.input_dim, self.filters))
    widths = [
      self.filters,
      *(self.filters * m for m in self.channel_multipliers),
    ]
    blocks = [
      self.res_block_tpl.clone().set(
        input_dim=input_dim,
        output_dim=output_dim,
        activation_tpl=activation.clone(),
        blur_filter_size=self.blur_filter_size,
      )
      for input_dim, output_dim in zip(widths[:-1], widths[1:], strict=True)
    ]
    self.create_children('res_blocks', blocks)
    self.create_child('conv_last', self._conv(widths[-1], widths[-1]))
    # Each block halves sizes, rounding up.
    num_positions = 1
    for size in (self.num_frames, self.image_height, self.image_width):
      num_positions *= -(-size // 2 ** len(blocks))
    proj = self.proj_tpl.clone().set(
      num_layers=2, hidden_dims=widths[-1], activate_final=False
    )
    proj.ff_tpl.set(
      input_dims=widths[-1] * num_positions,
      output_dims=1,
      activation_tpl=activation.clone(),
    )
    self.create_child('proj', proj)

  def _conv(self, input_dim: int, output_dim: int) -> LayerTpl:
    return self.conv_tpl.clone().set(
      padding='SAME',
      bias=True,
      filter_shape=(3, 3, 3, input_dim, output_dim),
      filter_stride=(1, 1, 1),
    )

  def __call__(self, inputs: Float[Array, 'B T H W C']) -> Float[Array, 'B 1']:
    """Returns a logit, positive for real videos.

    Raises:
      ValueError: the size of the video is not that of the fields.
    """
    expected = (
      self.num_frames,
      self.image_height,
      self.image_width,
      self.input_dim,
    )
    if inputs.shape[1:] != expected:
      raise ValueError(
        f'inputs must be [B, *{expected}] by num_frames, image_height, '
        f'image_width and input_dim, got shape {inputs.shape}'
      )
    x = self.activation(self.conv_first(inputs))
    for block in self.res_blocks:
      x = block(x)
    x = self.activation(self.conv_last(x))
    return self.proj(x.reshape(len(x), -1))


class VQVaeModel(base_layer.BaseLayer):
  """Encodes a video, quantizes the latents and decodes them."""

  # The components; the fields below are set on them.
  encoder_tpl: LayerTpl = template_field(Encoder)
  decoder_tpl: LayerTpl = template_field(Decoder)
  quantizer_tpl: LayerTpl = template_field(quantizer.LookupFreeQuantizer)
  temporal_downsample: Sequence[bool] = (False, True, True)
  channel_multipliers: Sequence[int] = (1, 2, 2, 4)
  embedding_dim: int = 8
  filters: int = 32
  num_res_blocks: int = 4

  def setup(self) -> None:
    levels = {
      'temporal_downsample': self.temporal_downsample,
      'channel_multipliers': self.channel_multipliers,
      'embedding_dim': self.embedding_dim,
      'filters': self.filters,
      'num_res_blocks': self.num_res_blocks,
    }
    self.create_child('encoder', self.encoder_tpl.clone().set(**levels))
    self.create_child('decoder', self.decoder_tpl.clone().set(**levels))
    quantize = self.quantizer_tpl.clone().set(embedding_dim=self.embedding_dim)
    self.create_child('quantizer', quantize)

  def encode(
    self, inputs: Float[Array, 'B T H W C']
  ) -> tuple[Float[Array, 'B U V X D'], NestedMap]:
    """Returns quantized latents and the outputs of the quantizer."""
    return self.quantizer(self.encoder(inputs))

  def encode_to_indices(
    self, inputs: Float[Array, 'B T H W C']
  ) -> Num[Array, 'B U V ...']:
    """Returns the tokens of a video."""
    return self.encode(inputs)[1].encoding_indices

  def encode_to_latents(
    self, inputs: Float[Array, 'B T H W C']
  ) -> Float[Array, 'B U V X D']:
    """Returns latents before the quantizer."""
    return self.encoder(inputs)

  def decode(
    self, inputs: Float[Array, 'B U V X D']
  ) -> Float[Array, 'B T H W C']:
    """Returns the video of quantized latents."""
    return self.decoder(inputs)

  def decode_from_indices(
    self, ids: Num[Array, 'B U V ...']
  ) -> Float[Array, 'B T H W C']:
    """Returns the video of tokens."""
    return self.decode(self.quantizer.decode_ids(ids))

  def decode_from_latents(
    self, latents: Float[Array, 'B U V X D']
  ) -> Float[Array, 'B T H W C']:
    """Returns the video of latents before the quantizer."""
    return self.decode(self.quantizer(latents)[0])

  def __call__(
    self, inputs: Float[Array, 'B T H W C']
  ) -> tuple[Float[Array, 'B T H W C'], NestedMap]:
    """Returns the reconstructed video and the outputs of the quantizer."""
    quantized, result = self.encode(inputs)
    return self.decoder(quantized), result
