# SPDX-License-Identifier: Apache-2.0
"""Accurate quantized training (AQT): einsums with quantized operands.

References:
  Pareto-optimal quantized ResNet, https://arxiv.org/abs/2105.03536
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.layers import einsum_equations
from praxis.layers.quantization.operations import (
  fake_quant,
  quantized_einsum,
  scale_shapes,
)


def aqt_einsum(
  eqn: str,
  lhs: Float[Array, '...'],
  rhs: Float[Array, '...'],
  *,
  lhs_quantizer: Any,
  rhs_quantizer: Any,
  scale_eqn: str | None = None,
  zp_eqn: str | None = None,
) -> Float[Array, '...']:
  """Returns the dequantized einsum of quantized operands.

  Args:
    eqn: equation of `lhs` and `rhs`; may have `...`.
    lhs: the left operand, usually activations.
    rhs: the right operand, usually a weight.
    lhs_quantizer: a `TensorQuantizer` for the left operand.
    rhs_quantizer: a `TensorQuantizer` for the right operand.
    scale_eqn: equation of the result of `eqn` and the scale of `rhs`, if that
      result is per block; requires an unquantized left operand.
    zp_eqn: equation of `lhs` and the zero points of `rhs` in that case.

  Raises:
    ValueError: the left operand is quantized with an option of the right one
      that does not support it.
  """
  parsed = einsum_equations.Equation.parse(eqn).expand(lhs.ndim, rhs.ndim)
  if getattr(rhs_quantizer, 'sub_channels', None) is not None:
    _check_not_quantized(lhs_quantizer, 'sub_channels')
    rhs = _fake_quantize_sub_channels(rhs, parsed.contracted, rhs_quantizer)
    return jnp.einsum(str(parsed), lhs, rhs)
  rhs_quantized, rhs_scale, rhs_zp = rhs_quantizer.quantize(
    rhs, parsed.contracted, squeeze_scale=False, quantized_dtype=rhs.dtype
  )
  axes = tuple(parsed.contracted)
  if rhs_zp is not None:
    _check_not_quantized(lhs_quantizer, 'a zero point of the weight')
    rhs_zp = jnp.squeeze(rhs_zp, axis=axes)
  if scale_eqn is not None or zp_eqn is not None:
    _check_not_quantized(lhs_quantizer, 'scale_eqn or zp_eqn')
    lhs_quantized, scale = lhs, jnp.squeeze(rhs_scale, axis=axes)
  else:
    dims = [i for i, c in enumerate(parsed.lhs) if c not in parsed.out]
    lhs_quantized, lhs_scale, lhs_zp = lhs_quantizer.quantize(
      lhs, dims, squeeze_scale=False, quantized_dtype=lhs.dtype
    )
    if lhs_zp is not None:
      lhs_quantized = fake_quant.dequantize((lhs_quantized, lhs_scale, lhs_zp))
      lhs_scale = jnp.ones_like(lhs_scale)
    scale = jnp.einsum(str(parsed), lhs_scale, rhs_scale)
  product = jnp.einsum(str(parsed), lhs_quantized, rhs_quantized)
  if scale_eqn is not None:
    product = jnp.einsum(scale_eqn, product, scale)
  else:
    product = product * scale
  if rhs_zp is None:
    return product
  if zp_eqn is not None:
    return product - jnp.einsum(zp_eqn, lhs, rhs_zp)
  return product - quantized_einsum.compute_offset(str(parsed), lhs, rhs_zp)


def _fake_quantize_sub_channels(
  weight: Array, contract_dims: list[int], quantizer: Any
) -> Array:
  """Returns a weight, fake-quantized with one scale per sub-channel."""
  shape = scale_shapes.compute_shape_with_subchannels(
    quantizer.sub_channels, weight.shape, contract_dims
  )
  quantized, scale, zero_point = quantizer.quantize(
    weight.reshape(shape),
    contract_dims,
    squeeze_scale=False,
    quantized_dtype=weight.dtype,
  )
  dequantized = quantizer.dequantize(
    quantized, scale, contract_dims, zero_point
  )
  return dequantized.reshape(weight.shape)


def _check_not_quantized(quantizer: Any, reason: str) -> None:
  if quantizer.precision is not None:
    raise ValueError(
      f'the left operand must not be quantized with {reason}, got precision '
      f'{quantizer.precision}; set act_params=None'
    )
