# SPDX-License-Identifier: Apache-2.0
"""Checks of the numbers in the settings of quantized layers."""

from __future__ import annotations

import jax.numpy as jnp

from praxis.layers.quantization import quantization_hparams
from praxis.layers.quantization.operations import rounding
from praxis.layers.quantization.utils import dtypes

ActQuantizationParams = quantization_hparams.ActQuantizationParams
QuantizationParams = quantization_hparams.QuantizationParams
QuantizationType = quantization_hparams.QuantizationType
WeightQuantizationParams = quantization_hparams.WeightQuantizationParams

_QUANT_METHODS = ('default', 'bin', 'bin_norm')


def check_levels(params: QuantizationParams) -> None:
  """Checks that weights and activations have levels to round to.

  Raises:
    ValueError: a precision, a clipping factor or quant_method is invalid.
  """
  weight, act = params.weight_params, params.act_params
  if weight.quant_method not in _QUANT_METHODS:
    raise ValueError(
      f'quant_method must be one of {_QUANT_METHODS}, got '
      f'{weight.quant_method!r}'
    )
  is_aqt = params.quantization_type == QuantizationType.AQT
  is_binary = weight.quant_method != 'default' and not is_aqt
  # One bit has the levels -1 and 0: a symmetric range has no positive one.
  _check_operand(
    'weight_params',
    weight,
    1 if is_binary or not weight.use_symmetric else 2,
    "one bit needs quant_method='bin' or use_symmetric=False",
  )
  if act is not None and act.precision is not None:
    _check_operand(
      'act_params',
      act,
      2 if act.symmetric else 1,
      'None leaves activations unquantized',
    )


def check_fp8(params: QuantizationParams) -> None:
  """Checks that a storage dtype in fp8 is the one that layers read.

  Raises:
    ValueError: it is not.
  """
  dtype = jnp.dtype(params.weight_params.dtype)
  is_aqt = params.quantization_type == QuantizationType.AQT
  if dtypes.is_fp8(dtype) and (is_aqt or dtype != jnp.float8_e4m3fn):
    raise ValueError(
      'dtype of weights in fp8 must be float8_e4m3fn with quantization_type '
      f'PTQ or FQ, got {dtype} with {params.quantization_type}; set '
      'weight_params.dtype=jnp.int8'
    )


def check_storage(params: QuantizationParams, *, is_packed: bool) -> None:
  """Checks that the storage dtype of a weight holds its quantized values.

  Weights that are quantized elsewhere may be unsigned.

  Args:
    params: the settings of the layer.
    is_packed: whether a value has four bits of the dtype.

  Raises:
    ValueError: it does not.
  """
  check_fp8(params)
  weight = params.weight_params
  dtype = jnp.dtype(weight.dtype)
  if not jnp.issubdtype(dtype, jnp.integer):
    return
  is_aqt = params.quantization_type == QuantizationType.AQT
  is_unsigned = is_aqt and weight.unsigned_int_bounds
  low, high = rounding.get_min_max(weight.precision, is_unsigned)
  is_signed = jnp.issubdtype(dtype, jnp.signedinteger)
  stored = jnp.dtype(jnp.int4 if is_signed else jnp.uint4)
  limits = jnp.iinfo(stored if is_packed else dtype)
  if low < limits.min or high > limits.max:
    signs = 'unsigned' if is_unsigned else 'signed'
    raise ValueError(
      f'dtype of weights must hold {low} to {high}, {signs} numbers of '
      f'precision={weight.precision}, got {dtype}; set weight_params.dtype='
      f'jnp.{"uint8" if is_unsigned else "int8"}'
    )


def _check_operand(
  name: str,
  params: ActQuantizationParams | WeightQuantizationParams,
  min_precision: int,
  advice: str,
) -> None:
  if params.precision is None or params.precision < min_precision:
    raise ValueError(
      f'{name}.precision must be at least {min_precision}, got '
      f'{params.precision}; {advice}'
    )
  if not 0.0 < params.clipping_coeff <= 1.0:
    raise ValueError(
      f'{name}.clipping_coeff must be above 0 and at most 1, got '
      f'{params.clipping_coeff}; 1.0 does not clip'
    )
