# SPDX-License-Identifier: Apache-2.0
"""Quantization and fake quantization of einsum operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis.layers import einsum_equations
from praxis.layers.quantization import quantization_hparams
from praxis.layers.quantization.operations import rounding, scale_shapes

WeightQuantizationParams = quantization_hparams.WeightQuantizationParams
Quantized = rounding.Quantized


def reduce_einsum_weight_precision(
  eqn: str | None,
  t: Shaped[Array, '...'],
  calculation_dtype: Any = jnp.bfloat16,
  squeeze: bool = True,
  need_gradient: bool = False,
  bits: int = 8,
  optimization_on_bound: bool = False,
  percentile: float | Array = 1.0,
  use_symmetric: bool = True,
  quant_method: str = 'default',
  contract_dims: Sequence[int] | None = None,
) -> Quantized:
  """Returns a weight quantized with one scale per channel.

  Args:
    eqn: equation of activations and weight, for the contracted dimensions.
    t: the weight.
    calculation_dtype: dtype of the computation.
    squeeze: whether to squeeze the contracted dimensions of scale and zero
      point.
    need_gradient: as in `reduce_precision`.
    bits: the precision.
    optimization_on_bound: whether to search for the best bound.
    percentile: factor of the bound.
    use_symmetric: whether there is no zero point.
    quant_method: as `WeightQuantizationParams.quant_method`.
    contract_dims: the contracted dimensions; replaces `eqn`.

  Raises:
    ValueError: both or neither of `eqn` and `contract_dims` are given.
  """
  if (eqn is None) == (contract_dims is None):
    raise ValueError(
      'one of eqn and contract_dims must be given, got '
      f'eqn={eqn!r} and contract_dims={contract_dims}'
    )
  dims = contract_dims
  if eqn is not None:
    dims = einsum_equations.eqn_to_weight_contract_dims(eqn)
  quantized = rounding.reduce_precision(
    t.astype(calculation_dtype),
    dims,
    need_gradient,
    bits,
    optimization_on_bound,
    percentile=percentile,
    use_symmetric=use_symmetric,
    quant_method=quant_method,
  )
  return squeezed(quantized, dims) if squeeze else quantized


def reduce_precision_activation(
  t: Shaped[Array, '...'],
  need_gradient: bool = False,
  bits: int = 8,
  contract_dims: Sequence[int] | None = None,
  symmetric: bool = True,
  percentile: float | Array = 1.0,
) -> Quantized:
  """Returns quantized activations; a scale is shared over `contract_dims`.

  Args:
    t: the activations.
    need_gradient: as in `reduce_precision`.
    bits: the precision.
    contract_dims: dimensions with a common scale; None: all.
    symmetric: whether there is no zero point.
    percentile: factor of the bound.
  """
  return rounding.reduce_precision(
    t,
    contract_dims,
    need_gradient,
    bits,
    use_symmetric=symmetric,
    percentile=percentile,
  )


def reduce_einsum_activation_precision(
  eqn: str,
  t: Shaped[Array, '...'],
  bits: int = 8,
  squeeze: bool = True,
  per_channel: bool = False,
  symmetric: bool = True,
  percentile: float | Array = 1.0,
) -> Quantized:
  """Returns the quantized left operand of an einsum.

  Args:
    eqn: equation of activations and weight.
    t: the activations.
    bits: the precision.
    squeeze: whether to squeeze the contracted dimensions of scale and zero
      point.
    per_channel: whether each row has its own scale.
    symmetric: whether there is no zero point.
    percentile: factor of the bound.
  """
  dims = None
  if per_channel:
    dims = einsum_equations.eqn_to_activation_contract_dims(eqn)
  quantized = reduce_precision_activation(
    t,
    bits=bits,
    contract_dims=dims,
    symmetric=symmetric,
    percentile=percentile,
  )
  return squeezed(quantized, dims) if squeeze else quantized


def fakequant_einsum(
  eqn: str,
  t: Float[Array, '*shape'],
  bits: int = 8,
  calculation_dtype: Any = jnp.float32,
  use_symmetric: bool = True,
  block_size: int = 0,
  use_fp: bool = False,
  quant_method: str = 'default',
) -> Float[Array, '*shape']:
  """Returns the fake-quantized weight of an einsum.

  The gradient is a straight-through estimator (arXiv:1308.3432).

  Args:
    eqn: equation of activations and weight.
    t: the weight.
    bits: the precision.
    calculation_dtype: dtype of the computation.
    use_symmetric: whether there is no zero point.
    block_size: number of contracted elements with a common scale; 0: all.
    use_fp: whether to use 4-bit floats if `bits` is 4.
    quant_method: as `WeightQuantizationParams.quant_method`.
  """
  dims = einsum_equations.eqn_to_weight_contract_dims(eqn)
  shape, dims = scale_shapes.get_sub_channel_shape(t.shape, block_size, dims)
  blocks = t.reshape(shape).astype(calculation_dtype)
  if use_fp and bits == 4:
    dequantized = rounding.FP4().nudge(blocks, dims)
  else:
    dequantized = dequantize(
      rounding.reduce_precision(
        blocks,
        dims,
        need_gradient=True,
        bits=bits,
        use_symmetric=use_symmetric,
        quant_method=quant_method,
      )
    )
  return dequantized.reshape(t.shape).astype(t.dtype)


def fakequant_activation(
  t: Float[Array, '*shape'],
  bits: int = 8,
  eqn: str | None = None,
  per_channel: bool = False,
  symmetric: bool = True,
  percentile: float | Array = 1.0,
) -> Float[Array, '*shape']:
  """Returns fake-quantized activations.

  Args:
    t: the activations.
    bits: the precision.
    eqn: equation of activations and weight; required with `per_channel`.
    per_channel: whether each row has its own scale.
    symmetric: whether there is no zero point.
    percentile: factor of the bound.

  Raises:
    ValueError: `per_channel` is set without `eqn`.
  """
  dims = None
  if per_channel:
    if eqn is None:
      raise ValueError(
        'eqn must be given with per_channel=True: it determines the channels'
      )
    dims = einsum_equations.eqn_to_activation_contract_dims(eqn)
  quantized = reduce_precision_activation(
    t,
    need_gradient=True,
    bits=bits,
    contract_dims=dims,
    symmetric=symmetric,
    percentile=percentile,
  )
  return dequantize(quantized).astype(t.dtype)


def fakequant_vn(
  eqn: str,
  w: Float[Array, '*shape'],
  next_prng_key: Array,
  wp: WeightQuantizationParams,
  step: Array | None = None,
  do_eval: bool = False,
  bits: int = 8,
  calculation_dtype: Any = jnp.bfloat16,
  use_symmetric: bool = True,
) -> Float[Array, '*shape']:
  """Returns a weight with variational noise, or in eval fake-quantized.

  Args:
    eqn: equation of activations and weight.
    w: the weight.
    next_prng_key: key of the noise.
    wp: scale, distribution and start step of the noise.
    step: the training step.
    do_eval: whether this is eval.
    bits: the precision in eval.
    calculation_dtype: dtype of the computation in eval.
    use_symmetric: must be True.

  Raises:
    ValueError: the parameters of the noise are invalid.
  """
  noise_scale, start_step = _checked_noise(wp, step, use_symmetric)
  if do_eval:
    return fakequant_einsum(eqn, w, bits, calculation_dtype)
  sample = {'uniform': _centered_uniform, 'normal': jax.random.normal}[
    wp.vn_noise_type
  ]
  noise = sample(next_prng_key, w.shape, w.dtype)
  scale = jnp.asarray(noise_scale)
  if step is not None and start_step > 0:
    scale = jnp.where(step >= start_step, scale, 0.0)
  axes = None
  if wp.vn_weight_norm_type == 'PerChannelLinf':
    axes = tuple(einsum_equations.eqn_to_weight_contract_dims(eqn))
  scale = scale * jnp.max(jnp.abs(w), axis=axes, keepdims=True)
  if wp.stop_scale_gradient:
    scale = jax.lax.stop_gradient(scale)
  return w + scale.astype(w.dtype) * noise


def dequantize(quantized: Quantized) -> Array:
  """Returns values * scale - zero point."""
  values, scale, zero_point = quantized
  dequantized = values * scale
  return dequantized if zero_point is None else dequantized - zero_point


def squeezed(quantized: Quantized, dims: Sequence[int] | None) -> Quantized:
  """Squeezes dimensions of the scale and the zero point."""
  values, scale, zero_point = quantized
  axes = None if dims is None else tuple(dims)
  if zero_point is not None:
    zero_point = jnp.squeeze(zero_point, axis=axes)
  return values, jnp.squeeze(scale, axis=axes), zero_point


def _centered_uniform(key: Array, shape: Sequence[int], dtype: Any) -> Array:
  return jax.random.uniform(key, shape, dtype, minval=-0.5, maxval=0.5)


def _checked_noise(
  wp: WeightQuantizationParams, step: Array | None, use_symmetric: bool
) -> tuple[float, int]:
  """Returns vn_scale and vn_start_step."""
  if wp.vn_scale is None or wp.vn_start_step is None:
    raise ValueError(
      'vn_scale and vn_start_step must be set with quantization_type=FQ_VN, '
      f'got {wp.vn_scale} and {wp.vn_start_step}'
    )
  for name, choices in (
    ('vn_noise_type', ('uniform', 'normal')),
    ('vn_weight_norm_type', ('Linf', 'PerChannelLinf')),
  ):
    if getattr(wp, name) not in choices:
      raise ValueError(
        f'{name} must be one of {choices}, got {getattr(wp, name)!r}'
      )
  if not use_symmetric:
    raise ValueError(
      'use_symmetric must be True with quantization_type=FQ_VN, got False'
    )
  if wp.vn_start_step > 0 and step is None:
    raise ValueError(
      f'step must be given with vn_start_step={wp.vn_start_step}; set '
      'use_step_count=True'
    )
  return wp.vn_scale, wp.vn_start_step
