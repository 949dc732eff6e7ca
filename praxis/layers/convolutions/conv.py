# SPDX-License-Identifier: Apache-2.0
"""Convolutions over two and three dimensions, channels last."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax
from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import normalizations
from praxis.layers.convolutions.padding import window_padding

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
_LETTERS = 'THW'


class BaseConv(base_layer.BaseLayer):
  """A convolution; subclasses say over how many dimensions.

  Channels fall into groups, each convolved by itself, where the filter takes
  fewer than the input has; `HParamsDepthwise` is one group per channel.
  """

  # Size of the filter along each dimension, then its channels in and out.
  filter_shape: Sequence[int] = ()
  # How far the filter moves, and how far its taps are from each other.
  filter_stride: Sequence[int] = ()
  dilations: Sequence[int] = ()
  # Whether there is a bias, and what it starts from.
  bias: bool = False
  bias_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )
  # What the filter starts from, instead of params_init.
  kernel_init: WeightInit | None = None
  # 'SAME' surrounds the input with zeros, 'VALID' does not.
  padding: str = 'SAME'
  # Whether 'SAME' takes the stride into account, as TensorFlow's does; other
  # frameworks, and older models here, pad as if nothing was strided.
  tf_equivalent_padding: bool = False
  # Whether no output depends on a later step of the first dimension.
  is_causal: bool = False

  _rank = 0  # dimensions that are convolved

  @classmethod
  def HParamsDepthwise(
    cls,
    *,
    kernel_shape: Sequence[int],
    in_channels: int,
    channel_multipliers: int = 1,
    **hparams: Any,
  ) -> pax_fiddle.Config[Self]:
    """Returns a Config in which each channel is convolved by itself."""
    if len(kernel_shape) != cls._rank:
      raise ValueError(
        f'kernel_shape of {cls.__name__} must have {cls._rank} entries, got '
        f'{tuple(kernel_shape)}'
      )
    if 'filter_shape' in hparams:
      raise ValueError(
        'filter_shape cannot be given to HParamsDepthwise, which makes it of '
        'kernel_shape and in_channels'
      )
    filter_shape = (*kernel_shape, 1, in_channels * channel_multipliers)
    return pax_fiddle.Config(cls, filter_shape=filter_shape, **hparams)

  def check_dimensions(self) -> None:
    """Raises ValueError for settings that do not go together."""
    what, rank = f'{type(self).__name__} {self.name!r}', self._rank
    for name, size in (
      ('filter_shape', rank + 2),
      ('filter_stride', rank),
      ('dilations', rank),
    ):
      value = tuple(getattr(self, name))
      if len(value) != size or min(value) <= 0:
        raise ValueError(
          f'{name} of {what} must have {size} positive entries, got {value}'
        )
    if self.padding not in ('SAME', 'VALID'):
      raise ValueError(
        f"padding of {what} must be 'SAME' or 'VALID', got {self.padding!r}"
      )
    if self.is_causal and not self.tf_equivalent_padding:
      raise ValueError(f'is_causal of {what} needs tf_equivalent_padding=True')
    if self.is_causal and self.padding == 'VALID':
      raise ValueError(f"is_causal of {what} needs padding='SAME'")

  def setup(self) -> None:
    self.check_dimensions()
    self.create_variable(
      'w',
      WeightHParams(
        shape=self.filter_shape,
        init=self.kernel_init,
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )
    if self.bias:
      shape = [self.filter_shape[-1]]
      self.create_variable('b', WeightHParams(shape=shape, init=self.bias_init))

  def __call__(
    self, inputs: Num[Array, 'B *space I']
  ) -> Float[Array, 'B *outer O']:
    """Returns the convolved inputs; 'SAME' without strides keeps the sizes."""
    groups = self._groups(inputs)
    space = _LETTERS[-self._rank :]
    mapping = self.activation_split_dims_mapping.out
    outputs = jax.lax.conv_general_dilated(
      self.shard(inputs.astype(self.fprop_dtype), mapping),
      self._kernel(),
      window_strides=self.filter_stride,
      padding=self._padding(),
      rhs_dilation=self.dilations,
      dimension_numbers=(f'N{space}C', f'{space}IO', f'N{space}C'),
      feature_group_count=groups,
    )
    outputs = self.shard(outputs, mapping)
    return outputs + self.theta.b if self.bias else outputs

  def _kernel(self) -> Float[Array, '*space I O']:
    return self.theta.w

  def _padding(self) -> str | list[tuple[int, int]]:
    if self.padding == 'VALID':
      return 'VALID'
    if self.tf_equivalent_padding and not self.is_causal:
      return 'SAME'
    return window_padding(
      self.filter_shape[: self._rank], self.dilations, is_causal=self.is_causal
    )

  def _groups(self, inputs: Array) -> int:
    """Returns how many groups the channels of the inputs fall into."""
    what, (taken, made) = f'{type(self).__name__}', self.filter_shape[-2:]
    if inputs.ndim != self._rank + 2:
      raise ValueError(
        f'inputs of {what} must have rank {self._rank + 2}, channels last, got '
        f'{inputs.shape}'
      )
    if inputs.shape[-1] % taken:
      raise ValueError(
        f'channels of the inputs of {what} must be a multiple of {taken}, the '
        f'channels the filter takes, got {inputs.shape}'
      )
    groups = inputs.shape[-1] // taken
    if made % groups:
      raise ValueError(
        f'{what} must make a multiple of {groups} channels, the groups that '
        f'inputs {inputs.shape} fall into, got filter_shape '
        f'{tuple(self.filter_shape)}'
      )
    return groups


class Conv2D(BaseConv):
  """A convolution over height (or time) and width: [B, H, W, I]."""

  filter_shape: Sequence[int] = (0, 0, 0, 0)
  filter_stride: Sequence[int] = (0, 0)
  dilations: Sequence[int] = (1, 1)
  # Normalises the filter before it is used.
  weight_norm_tpl: LayerTpl = pax_fiddle.template_field(
    normalizations.IdentityNorm
  )

  _rank = 2

  def setup(self) -> None:
    super().setup()
    norm = self.weight_norm_tpl.clone().set(dim=self.filter_shape[-1])
    self.create_child('weight_norm', norm)

  def _kernel(self) -> Float[Array, 'H W I O']:
    return self.weight_norm(self.theta.w)


class Conv3D(BaseConv):
  """A convolution over time, height and width: [B, T, H, W, I]."""

  filter_shape: Sequence[int] = (0, 0, 0, 0, 0)
  filter_stride: Sequence[int] = (0, 0, 0)
  dilations: Sequence[int] = (1, 1, 1)

  _rank = 3
