# SPDX-License-Identifier: Apache-2.0
"""Operands of products, quantised, or quantised and restored for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis.layers.quantization import quantization_hparams
from praxis.layers.quantization.operations import rounding, scale_shapes
from praxis.layers.quantization.utils import einsum_equations

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
  """Returns a weight quantised with a scale for each channel.

  Args:
    eqn: of activations and weight, which says what is contracted.
    t: the weight.
    calculation_dtype: what to compute in.
    squeeze: whether scale and zero point lose the contracted dimensions.
    need_gradient: as in `reduce_precision`, and so on.
    bits: of a quantised number.
    optimization_on_bound: whether to search the best range.
    percentile: what the range is multiplied with.
    use_symmetric: whether there is no zero point.
    quant_method: see `WeightQuantizationParams.quant_method`.
    contract_dims: what is contracted, in place of `eqn`.
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
  """Returns activations quantised, with a scale for all or for each row."""
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
  """Returns the left operand of a product quantised.

  Each row has a scale of its own with `per_channel`, else there is one.
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
  """Returns the weight of a product, quantised and restored.

  The gradient passes the rounding. `block_size` entries of the contraction
  share a scale, all of them when it is 0.
  """
  dims = einsum_equations.eqn_to_weight_contract_dims(eqn)
  shape, dims = scale_shapes.get_sub_channel_shape(t.shape, block_size, dims)
  blocks = t.reshape(shape).astype(calculation_dtype)
  if use_fp and bits == 4:
    restored = rounding.FP4().nudge(blocks, dims)
  else:
    restored = restore(
      rounding.reduce_precision(
        blocks,
        dims,
        need_gradient=True,
        bits=bits,
        use_symmetric=use_symmetric,
        quant_method=quant_method,
      )
    )
  return restored.reshape(t.shape).astype(t.dtype)


def fakequant_activation(
  t: Float[Array, '*shape'],
  bits: int = 8,
  eqn: str | None = None,
  per_channel: bool = False,
  symmetric: bool = True,
  percentile: float | Array = 1.0,
) -> Float[Array, '*shape']:
  """Returns activations, quantised and restored; see fakequant_einsum."""
  dims = None
  if per_channel:
    if eqn is None:
      raise ValueError(
        'eqn must be given with per_channel=True: it says what a channel is'
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
  return restore(quantized).astype(t.dtype)


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
  """Returns a weight with noise in training, quantised and restored in eval.

  Args:
    eqn: of activations and weight, which says what a channel is.
    w: the weight.
    next_prng_key: of the noise.
    wp: what the noise is like.
    step: of training; there is no noise before wp.vn_start_step.
    do_eval: whether this is eval.
    bits: of a number in eval.
    calculation_dtype: what eval computes in.
    use_symmetric: must be True.
  """
  _check_noise(wp, step, use_symmetric)
  if do_eval:
    return fakequant_einsum(eqn, w, bits, calculation_dtype)
  draw = {'uniform': _centered, 'normal': jax.random.normal}[wp.vn_noise_type]
  noise = draw(next_prng_key, w.shape, w.dtype)
  scale = jnp.asarray(wp.vn_scale)
  if wp.vn_start_step > 0:
    scale = jnp.where(step >= wp.vn_start_step, scale, 0.0)
  axes = None
  if wp.vn_weight_norm_type == 'PerChannelLinf':
    axes = tuple(einsum_equations.eqn_to_weight_contract_dims(eqn))
  scale = scale * jnp.max(jnp.abs(w), axis=axes, keepdims=True)
  if wp.stop_scale_gradient:
    scale = jax.lax.stop_gradient(scale)
  return w + scale.astype(w.dtype) * noise


def restore(quantized: Quantized) -> Array:
  """Returns what was quantised, about."""
  numbers, scale, zero_point = quantized
  restored = numbers * scale
  return restored if zero_point is None else restored - zero_point


def squeezed(quantized: Quantized, dims: Sequence[int] | None) -> Quantized:
  """Returns `quantized` with scale and zero point without some dimensions."""
  numbers, scale, zero_point = quantized
  axes = None if dims is None else tuple(dims)
  if zero_point is not None:
    zero_point = jnp.squeeze(zero_point, axis=axes)
  return numbers, jnp.squeeze(scale, axis=axes), zero_point


def _centered(key: Array, shape: Sequence[int], dtype: Any) -> Array:
  return jax.random.uniform(key, shape, dtype, minval=-0.5, maxval=0.5)


def _check_noise(
  wp: WeightQuantizationParams, step: Array | None, use_symmetric: bool
) -> None:
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
