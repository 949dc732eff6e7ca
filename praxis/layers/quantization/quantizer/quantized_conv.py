# SPDX-License-Identifier: Apache-2.0
"""Convolution with a quantized kernel, for inference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.layers.quantization import operations


def quantized_conv(
  layer: Any,
  x: Float[Array, 'B *S I'],
  padding: Any,
  dimension_numbers: tuple[str, str, str],
  feature_group_count: int,
) -> Float[Array, 'B *T O']:
  """Returns the convolution of `x` with the quantized weight `w` of a layer.

  Args:
    layer: a QuantizationLayer in mode INFERENCE, with filter_stride and
      dilations.
    x: the input.
    padding: as in `lax.conv_general_dilated`.
    dimension_numbers: layouts of input, kernel and output.
    feature_group_count: number of channel groups.
  """
  params = layer.quantization
  w, scale, _ = layer.get_quantized_weight('w')
  dtype, act = x.dtype, params.act_params
  if act is not None and act.precision is not None:
    x, scale_act, _ = operations.reduce_precision_activation(
      x, bits=act.precision, percentile=act.clipping_coeff
    )
    scale = jnp.squeeze(scale_act) * scale
  outputs = jax.lax.conv_general_dilated(
    x.astype(dtype),
    w.astype(dtype),
    window_strides=layer.filter_stride,
    padding=padding,
    rhs_dilation=layer.dilations,
    dimension_numbers=dimension_numbers,
    feature_group_count=feature_group_count,
  )
  return outputs * scale
