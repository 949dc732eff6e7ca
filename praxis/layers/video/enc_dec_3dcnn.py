# SPDX-License-Identifier: Apache-2.0
"""3D convolutional blocks of video encoders, decoders and discriminators.

References: MAGVIT, https://arxiv.org/abs/2212.05199; MAGVIT-v2 (causal
convolutions), https://arxiv.org/abs/2310.05737
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, Shaped

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.layers import activations, convolutions, linears, normalizations

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


def scan_function(
  fn: Callable[..., Any], in_axis: int = 0
) -> Callable[..., Any]:
  """Returns a scan of `fn` over slices of size 1 along `in_axis`.

  Results are concatenated along that axis.

  Args:
    fn: takes positional pytrees of arrays; not a flax module.
    in_axis: the axis of all inputs and outputs.
  """

  def split(x: Array) -> Array:
    if x.ndim <= in_axis:
      raise ValueError(
        f'in_axis must be below the rank {x.ndim}, got {in_axis}'
      )
    return jnp.expand_dims(jnp.moveaxis(x, in_axis, 0), in_axis + 1)

  def join(x: Array) -> Array:
    x = jnp.moveaxis(x, 0, in_axis)
    return x.reshape(*x.shape[:in_axis], -1, *x.shape[in_axis + 2 :])

  def scanned(*args: Any) -> Any:
    step = lambda carry, slices: (carry, fn(*slices))
    _, results = jax.lax.scan(step, (), jax.tree.map(split, args))
    return jax.tree.map(join, results)

  return scanned


def depth_to_space(
  x: Shaped[Array, 'B T H W D'], t_stride: int, filters: int
) -> Shaped[Array, 'B T2 H2 W2 {filters}']:
  """Moves channels to time, by `t_stride`, and to height and width, by 2."""
  batch, time, height, width, _ = x.shape
  x = x.reshape(batch, time, height, width, t_stride, 2, 2, filters)
  x = x.transpose(0, 1, 4, 2, 5, 3, 6, 7)
  return x.reshape(batch, time * t_stride, height * 2, width * 2, filters)


class GroupNormSpatial(normalizations.GroupNorm):
  """Group normalization of each frame.

  References: https://arxiv.org/abs/1803.08494
  """

  # Number of dimensions after the batch that are not reduced, and the rank
  # without them.
  num_ignored_dims: int = 1
  input_rank: int | None = 5 - num_ignored_dims
  epsilon: float = 1e-6

  def __call__(
    self,
    inputs: Float[Array, ' B *rest'],
    paddings: Num[Array, 'B T'] | None = None,
  ) -> Float[Array, ' B *rest']:
    """Returns the normalized inputs; paddings are ignored."""
    frames = inputs.reshape(-1, *inputs.shape[1 + self.num_ignored_dims :])
    return super().__call__(frames).reshape(inputs.shape)


class CondNormLayer(base_layer.BaseLayer):
  """Group normalization whose scale and bias are functions of an embedding."""

  # The normalization, and the affine maps of the embedding.
  group_norm_tpl: LayerTpl = template_field(GroupNormSpatial)
  linear_tpl: LayerTpl = template_field(linears.Linear)
  bias_tpl: LayerTpl = template_field(linears.Bias)
  # Channels of the embedding and of the input.
  emb_dim: int = 0
  dim: int = 0

  def setup(self) -> None:
    norm = self.group_norm_tpl.clone().set(
      dim=self.dim, use_scale=False, use_bias=False
    )
    self.create_child('group_norm', norm)
    linear = self.linear_tpl.clone()
    linear.set(input_dims=self.emb_dim, output_dims=self.dim)
    bias = self.bias_tpl.clone().set(dims=self.dim)
    self.create_child('gamma_linear', linear)
    self.create_child('gamma_bias', bias)
    self.create_child('beta_linear', linear.clone())
    self.create_child('beta_bias', bias.clone())

  def __call__(
    self, inputs: Float[Array, '*B D'], emb: Float[Array, '*B E']
  ) -> Float[Array, '*B D']:
    gamma = self.gamma_bias(self.gamma_linear(emb))
    beta = self.beta_bias(self.beta_linear(emb))
    return self.group_norm(inputs) * (gamma + 1.0) + beta


class CausalConv(convolutions.Conv3D):
  """A convolution that is causal in time, with edge padding."""

  padding: str = 'VALID'
  filter_stride: Sequence[int] = (1, 1, 1)
  bias: bool = True

  def __call__(
    self, inputs: Num[Array, 'B T H W I']
  ) -> Float[Array, 'B T2 H2 W2 O']:
    time, *space = self.filter_shape[:3]
    pads = [(time - 1, 0), *(((k - 1) // 2, k // 2) for k in space)]
    padded = jnp.pad(inputs, [(0, 0), *pads, (0, 0)], mode='edge')
    return super().__call__(padded)


class ResBlock(base_layer.BaseLayer):
  """A pre-activation residual block of two 3 x 3 x 3 convolutions."""

  # Channels of the input and of the output.
  input_dim: int = 0
  output_dim: int = 128
  # Whether the shortcut of a block that changes channels is 3 x 3 x 3, or
  # 1 x 1 x 1.
  use_conv_shortcut: bool = False
  # The components.
  norm_layer_tpl: LayerTpl = template_field(GroupNormSpatial)
  conv_layer_tpl: LayerTpl = template_field(CausalConv)
  activation_tpl: LayerTpl = template_field(activations.Swish)

  def setup(self) -> None:
    self.create_child('norm_0', self._norm(self.input_dim))
    self.create_child('conv_0', self._conv(3, self.input_dim))
    self.create_child('norm_1', self._norm(self.output_dim))
    self.create_child('conv_1', self._conv(3, self.output_dim))
    if self.input_dim != self.output_dim:
      size = 3 if self.use_conv_shortcut else 1
      self.create_child('conv_shortcut', self._conv(size, self.input_dim))
    self.create_child('activation', self.activation_tpl.clone())

  def _norm(self, dim: int) -> LayerTpl:
    return self.norm_layer_tpl.clone().set(dim=dim)

  def _conv(self, size: int, input_dim: int) -> LayerTpl:
    shape = (size, size, size, input_dim, self.output_dim)
    return self.conv_layer_tpl.clone().set(filter_shape=shape, bias=False)

  def __call__(
    self, inputs: Float[Array, 'B T H W I']
  ) -> Float[Array, 'B T H W O']:
    _check_channels(self, inputs)
    x = self.conv_0(self.activation(self.norm_0(inputs)))
    x = self.conv_1(self.activation(self.norm_1(x)))
    if self.input_dim != self.output_dim:
      inputs = self.conv_shortcut(inputs)
    return x + inputs


class BlurPool3D(base_layer.BaseLayer):
  """Low-pass filters each channel, then subsamples.

  References: Making Convolutional Networks Shift-Invariant Again,
  https://arxiv.org/abs/1904.11486
  """

  # Size of the binomial filter, 2 to 7.
  filter_size: int = 3
  # The strides in time, height and width.
  strides: tuple[int, int, int] = (2, 2, 2)
  # 'SAME' or 'VALID'.
  padding: str = 'SAME'

  def setup(self) -> None:
    if not 2 <= self.filter_size <= 7:
      raise ValueError(f'filter_size must be 2 to 7, got {self.filter_size}')

  def __call__(
    self, inputs: Float[Array, 'B T H W D']
  ) -> Float[Array, 'B T2 H2 W2 D']:
    last, channels = self.filter_size - 1, inputs.shape[-1]
    taps = jnp.asarray([math.comb(last, i) for i in range(last + 1)]) / 2**last
    blur = jnp.einsum('i,j,k->ijk', taps, taps, taps)[..., None, None]
    return jax.lax.conv_general_dilated(
      inputs,
      jnp.tile(blur, [1, 1, 1, 1, channels]).astype(inputs.dtype),
      self.strides,
      self.padding,
      dimension_numbers=('NTHWC', 'THWIO', 'NTHWC'),
      feature_group_count=channels,
      precision=jax.lax.Precision.HIGHEST,
    )


class DiscriminatorResBlock(base_layer.BaseLayer):
  """A downsampling residual block, as in StyleGAN2's discriminator.

  References: https://arxiv.org/abs/1912.04958
  """

  # Channels of the input and of the output.
  input_dim: int = 0
  output_dim: int = 128
  # Size of the blur filter.
  blur_filter_size: int = 3
  # The components.
  conv_layer_tpl: LayerTpl = template_field(convolutions.Conv3D)
  activation_tpl: LayerTpl = template_field(activations.LeakyReLU)
  blur_pool_tpl: LayerTpl = template_field(BlurPool3D)

  def setup(self) -> None:
    self.create_child('activation', self.activation_tpl.clone())
    self.create_child('conv_first', self._conv(3, self.input_dim))
    residual = self._conv(1, self.output_dim).set(bias=False)
    self.create_child('conv_residual', residual)
    self.create_child('conv_last', self._conv(3, self.output_dim))
    blur = self.blur_pool_tpl.clone().set(filter_size=self.blur_filter_size)
    self.create_child('blur_pool', blur)

  def _conv(self, size: int, output_dim: int) -> LayerTpl:
    return self.conv_layer_tpl.clone().set(
      padding='SAME',
      bias=True,
      filter_shape=(size, size, size, self.input_dim, output_dim),
      filter_stride=(1, 1, 1),
    )

  def __call__(
    self, inputs: Float[Array, 'B T H W I']
  ) -> Float[Array, 'B T2 H2 W2 O']:
    _check_channels(self, inputs)
    x = self.blur_pool(self.activation(self.conv_first(inputs)))
    x = self.activation(self.conv_last(x))
    residual = self.conv_residual(self.blur_pool(inputs))
    return (x + residual) / math.sqrt(2.0)


def _check_channels(layer: base_layer.BaseLayer, inputs: Array) -> None:
  if inputs.shape[-1] != layer.input_dim:
    raise ValueError(
      f'inputs of {type(layer).__name__} {layer.name!r} must have '
      f'{layer.input_dim} channels, input_dim, got {inputs.shape}'
    )
