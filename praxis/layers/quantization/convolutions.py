# SPDX-License-Identifier: Apache-2.0
"""Convolution with a quantized kernel."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis.alias_names import module_getattr
from praxis.layers import convolutions
from praxis.layers.quantization import quantized_layer_mixin, quantizer

__getattr__ = module_getattr(__name__)

# The contraction of a kernel: window positions and input channels.
_EQUATION = 'bHWI,HWIO->bO'


class Conv2D(convolutions.Conv2D, quantized_layer_mixin.QuantizedLayerMixin):
  """A Conv2D with a quantized kernel, one scale per output channel."""

  _PACK_4BIT_DIM = 0
  _HAS_BLOCKS = False

  @nn.nowrap
  def _equations(self) -> dict[str, str]:
    return {'w': _EQUATION}

  def setup(self) -> None:
    if self.quantization and not self.quantization.weight_params.use_symmetric:
      raise ValueError(
        'use_symmetric must be True for a convolution, got False: padding does '
        'not support a zero point'
      )
    super().setup()

  def __call__(
    self, inputs: Num[Array, 'B *space I']
  ) -> Float[Array, 'B *outer O']:
    if not self._is_inference:
      return super().__call__(inputs)
    self._check_inputs(inputs)
    mapping = self.activation_split_dims_mapping.out
    outputs = quantizer.quantized_conv(
      self,
      self.shard(inputs.astype(self.fprop_dtype), mapping),
      self._padding(),
      ('NHWC', 'HWIO', 'NHWC'),
      inputs.shape[-1] // self.filter_shape[-2],
    )
    outputs = self.shard(outputs, mapping)
    return outputs + self.theta.b if self.bias else outputs

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the normalized kernel quantized, without its normalization."""
    return quantized_layer_mixin.without(
      super().quantize_weight(), ('weight_norm',)
    )

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns the partition specs of the variables of `quantize_weight`."""
    return quantized_layer_mixin.without(
      super().quantized_partition_specs(), ('weight_norm',)
    )

  def _kernel(self) -> Float[Array, '*space I O']:
    kernel = super()._kernel()
    return self.fake_weight(_EQUATION, kernel) if self.quantization else kernel

  @nn.nowrap
  def _trained_weight(self, name: str) -> Array:
    kernel = super()._trained_weight(name)
    # A stored kernel is normalized.
    is_float = jnp.issubdtype(kernel.dtype, jnp.floating)
    return self.weight_norm(kernel) if is_float else kernel
