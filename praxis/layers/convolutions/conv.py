# SPDX-License-Identifier: Apache-2.0
"""2D and 3D convolutions, channels last."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax
from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle, py_utils
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import normalizations
from praxis.layers.convolutions.convolve import Padding, convolve
from praxis.layers.convolutions.padding import window_padding

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class BaseConv(base_layer.BaseLayer):
  """N-dimensional convolution; subclasses set the number of dimensions.

  The convolution is grouped if the filter has fewer input channels than the
  inputs; `HParamsDepthwise` has one group per channel.
  """

  # Filter size of each spatial dimension, then input and output channels.
  filter_shape: Sequence[int] = ()
  # Stride and dilation of each spatial dimension.
  filter_stride: Sequence[int] = ()
  dilations: Sequence[int] = ()
  # Adds a bias, initialized by `bias_init`.
  bias: bool = False
  bias_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )
  # Initializer of the filter; None is `params_init`.
  kernel_init: WeightInit | None = None
  # 'SAME' pads with zeros, 'VALID' does not pad.
  padding: str = 'SAME'
  # Computes 'SAME' padding with the stride, as TensorFlow does. If False, the
  # padding is that of stride 1, as in PyTorch.
  tf_equivalent_padding: bool = False
  # Makes the first spatial dimension causal.
  is_causal: bool = False

  _rank = 0  # number of spatial dimensions

  @classmethod
  def HParamsDepthwise(
    cls,
    *,
    kernel_shape: Sequence[int],
    in_channels: int,
    channel_multipliers: int = 1,
    **hparams: Any,
  ) -> pax_fiddle.Config[Self]:
    """Returns the Config of a depthwise convolution.

    Args:
      kernel_shape: filter size of each spatial dimension.
      in_channels: input channels.
      channel_multipliers: output channels per input channel.
      **hparams: other fields of the layer.

    Raises:
      ValueError: `kernel_shape` has the wrong length, or `hparams` sets
        `filter_shape`.
    """
    if len(kernel_shape) != cls._rank:
      raise ValueError(
        f'kernel_shape of {cls.__name__} must have {cls._rank} entries, got '
        f'{tuple(kernel_shape)}'
      )
    if 'filter_shape' in hparams:
      raise ValueError(
        'HParamsDepthwise derives filter_shape from kernel_shape and '
        f'in_channels, got filter_shape {hparams["filter_shape"]}; remove it'
      )
    filter_shape = (*kernel_shape, 1, in_channels * channel_multipliers)
    return pax_fiddle.Config(cls, filter_shape=filter_shape, **hparams)

  def check_dimensions(self) -> None:
    """Checks the fields.

    Raises:
      ValueError: a field is invalid, or two fields are incompatible.
    """
    layer, rank = f'{type(self).__name__} {self.name!r}', self._rank
    for name, size in (
      ('filter_shape', rank + 2),
      ('filter_stride', rank),
      ('dilations', rank),
    ):
      value = tuple(getattr(self, name))
      if len(value) != size or min(value) <= 0:
        raise ValueError(
          f'{name} of {layer} must have {size} positive entries, got {value}'
        )
    if self.padding not in ('SAME', 'VALID'):
      raise ValueError(
        f"padding of {layer} must be 'SAME' or 'VALID', got {self.padding!r}"
      )
    if self.is_causal and not self.tf_equivalent_padding:
      raise ValueError(f'is_causal of {layer} needs tf_equivalent_padding=True')
    if self.is_causal and self.padding == 'VALID':
      raise ValueError(f"is_causal of {layer} needs padding='SAME'")

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
    """Returns the convolution; 'SAME' with stride 1 keeps spatial sizes."""
    self._check_inputs(inputs)
    mapping = self.activation_split_dims_mapping.out
    outputs = convolve(
      self.shard(inputs.astype(self.fprop_dtype), mapping),
      self._kernel(),
      strides=self.filter_stride,
      padding=self._padding(),
      dilations=self.dilations,
      uses_all_axes=self._uses_all_axes(),
    )
    outputs = self.shard(outputs, mapping)
    return outputs + self.theta.b if self.bias else outputs

  def _uses_all_axes(self) -> bool:
    """Whether all mesh axes shard batch or spatial dims of activations."""
    mapping = self.activation_split_dims_mapping.out or ()
    spec = base_layer.to_partition_spec(mapping[:-1], self.mesh_axis_names)
    used = {axis for entry in spec for axis in py_utils.mesh_axes(entry)}
    sizes = jax.sharding.get_abstract_mesh().shape
    return all(size == 1 or axis in used for axis, size in sizes.items())

  def _kernel(self) -> Float[Array, '*space I O']:
    return self.theta.w

  def _padding(self) -> Padding:
    if self.padding == 'VALID':
      return 'VALID'
    if self.tf_equivalent_padding and not self.is_causal:
      return 'SAME'
    return window_padding(
      self.filter_shape[: self._rank], self.dilations, is_causal=self.is_causal
    )

  def _check_inputs(self, inputs: Array) -> None:
    """Raises ValueError if the filter does not fit the inputs."""
    layer = type(self).__name__
    in_channels, out_channels = self.filter_shape[-2:]
    if inputs.ndim != self._rank + 2:
      raise ValueError(
        f'inputs of {layer} must have rank {self._rank + 2}, channels last, '
        f'got {inputs.shape}'
      )
    if inputs.shape[-1] % in_channels:
      raise ValueError(
        f'channels of the inputs of {layer} must be a multiple of '
        f'{in_channels}, filter_shape[-2], got {inputs.shape}'
      )
    num_groups = inputs.shape[-1] // in_channels
    if out_channels % num_groups:
      raise ValueError(
        f'output channels of {layer} must be a multiple of {num_groups}, the '
        f'groups of inputs {inputs.shape}, got filter_shape '
        f'{tuple(self.filter_shape)}'
      )


class Conv2D(BaseConv):
  """2D convolution of images [B, H, W, I] or of sequences, H being time."""

  filter_shape: Sequence[int] = (0, 0, 0, 0)
  filter_stride: Sequence[int] = (0, 0)
  dilations: Sequence[int] = (1, 1)
  # Normalization of the filter, e.g. weight normalization.
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
  """3D convolution of videos [B, T, H, W, I]."""

  filter_shape: Sequence[int] = (0, 0, 0, 0, 0)
  filter_stride: Sequence[int] = (0, 0, 0)
  dilations: Sequence[int] = (1, 1, 1)

  _rank = 3
