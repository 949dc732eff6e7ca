# SPDX-License-Identifier: Apache-2.0
"""Convolution, batch normalisation and activation in one."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle, py_utils
from praxis.layers import activations, normalizations
from praxis.layers.convolutions.conv import Conv2D

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class ConvBNAct(Conv2D):
  """A convolution, then batch normalisation, then an activation."""

  # The normalisation and the activation; None leaves it out.
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
    return self._block(inputs)

  def _block(self, inputs: Num[Array, 'B H W I']) -> Float[Array, 'B U V O']:
    outputs = Conv2D.__call__(self, inputs)
    if self.batch_norm_tpl is not None:
      outputs = self.bn(outputs)
    if self.activation_tpl is not None:
      outputs = self.activation(outputs)
    return outputs


class ConvBNActWithPadding(ConvBNAct):
  """The same for sequences: height is time, part of which is padding."""

  # Whether an output of a strided convolution is padding if the last, not the
  # first frame it stands for is, as Lingvo has it.
  compat_with_lingvo: bool = False

  def setup(self) -> None:
    super().setup()
    if self.compat_with_lingvo and tuple(self.dilations) != (1, 1):
      raise ValueError(
        f'compat_with_lingvo needs dilations (1, 1), got {self.dilations}'
      )

  def __call__(
    self, inputs: Num[Array, 'B H W I'], paddings: Num[Array, 'B H']
  ) -> tuple[Float[Array, 'B U V O'], Num[Array, 'B U']]:
    """Returns the outputs and their paddings.

    Padded inputs count as 0. Padded outputs are 0 unless padding='SAME' and
    there is no stride: what follows then sees the zeros of the paddings only.
    """
    inputs = py_utils.apply_padding(inputs, paddings[:, :, None, None])
    outputs = self._block(inputs)
    if self.filter_stride[0] == 1 and self.padding == 'SAME':
      return outputs, paddings
    paddings = self._out_paddings(paddings, outputs.shape[1])
    outputs *= (1.0 - paddings).astype(outputs.dtype)[:, :, None, None]
    return outputs, paddings

  def _out_paddings(
    self, paddings: Num[Array, 'B H'], length: int
  ) -> Num[Array, 'B U']:
    stride = self.filter_stride[0]
    if self.padding == 'VALID':
      # An output is padding if all it is made of is.
      starts = jnp.arange(length)[:, None] * stride
      taps = jnp.arange(self.filter_shape[0]) * self.dilations[0]
      return jnp.min(paddings[:, starts + taps], axis=-1)
    if not self.compat_with_lingvo:
      return paddings[:, ::stride]
    kept = paddings[:, stride - 1 :: stride]
    missing = length - kept.shape[1]
    return jnp.pad(kept, [(0, 0), (0, missing)], constant_values=1)
