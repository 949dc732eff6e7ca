# SPDX-License-Identifier: Apache-2.0
"""Convolution, batch normalization and activation as one layer."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle, py_utils
from praxis.layers import activations, normalizations
from praxis.layers.convolutions.conv import Conv2D

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class ConvBNAct(Conv2D):
  """2D convolution, batch normalization, activation, in that order."""

  # Normalization and activation; None omits either.
  batch_norm_tpl: LayerTpl | None = template_field(normalizations.BatchNorm)
  activation_tpl: LayerTpl | None = template_field(activations.ReLU)

  def setup(self) -> None:
    super().setup()
    if self.batch_norm_tpl is not None:
      norm = self.batch_norm_tpl.clone().set(dim=self.filter_shape[-1])
      if hasattr(norm, 'use_moving_avg_in_training'):
        norm.use_moving_avg_in_training = False
      self.create_child('bn', norm)
    if self.activation_tpl is not None:
      self.create_child('activation', self.activation_tpl.clone())

  def __call__(self, inputs: Num[Array, 'B H W I']) -> Float[Array, 'B U V O']:
    return self._conv_bn_act(inputs)

  def _conv_bn_act(
    self, inputs: Num[Array, 'B H W I']
  ) -> Float[Array, 'B U V O']:
    outputs = Conv2D.__call__(self, inputs)
    if self.batch_norm_tpl is not None:
      outputs = self.bn(outputs)
    if self.activation_tpl is not None:
      outputs = self.activation(outputs)
    return outputs


class ConvBNActWithPadding(ConvBNAct):
  """`ConvBNAct` for padded sequences; the height dimension is time."""

  # Takes the padding of a strided output from the last input frame of its
  # stride, as Lingvo does, instead of the first.
  compat_with_lingvo: bool = False

  def setup(self) -> None:
    super().setup()
    if self.compat_with_lingvo and tuple(self.dilations) != (1, 1):
      raise ValueError(
        'compat_with_lingvo=True needs dilations (1, 1), got '
        f'{tuple(self.dilations)}'
      )

  # Upstream's base class takes no paddings.
  def __call__(  # type: ignore[override]
    self, inputs: Num[Array, 'B H W I'], paddings: Num[Array, 'B H']
  ) -> tuple[Float[Array, 'B U V O'], Num[Array, 'B U']]:
    """Returns the outputs and their paddings.

    Padded input frames are set to 0. Padded output frames are set to 0 unless
    padding='SAME' and the stride is 1, where the paddings do not change.

    Args:
      inputs: features; H is time.
      paddings: 1 for padded frames.
    """
    inputs = py_utils.apply_padding(inputs, paddings[:, :, None, None])
    outputs = self._conv_bn_act(inputs)
    if self.filter_stride[0] == 1 and self.padding == 'SAME':
      return outputs, paddings
    paddings = self._out_paddings(paddings, outputs.shape[1])
    outputs *= (1.0 - paddings).astype(outputs.dtype)[:, :, None, None]
    return outputs, paddings

  def _out_paddings(
    self, paddings: Num[Array, 'B H'], length: int
  ) -> Num[Array, 'B U']:
    """Returns the paddings of the `length` output frames."""
    stride = self.filter_stride[0]
    if self.padding == 'VALID':
      # An output frame is padding if its receptive field is all padding.
      starts = jnp.arange(length)[:, None] * stride
      taps = jnp.arange(self.filter_shape[0]) * self.dilations[0]
      return jnp.min(paddings[:, starts + taps], axis=-1)
    if not self.compat_with_lingvo:
      return paddings[:, ::stride]
    last_frames = paddings[:, stride - 1 :: stride]
    missing = length - last_frames.shape[1]
    return jnp.pad(last_frames, [(0, 0), (0, missing)], constant_values=1)
