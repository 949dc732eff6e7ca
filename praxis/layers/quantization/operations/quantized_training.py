# SPDX-License-Identifier: Apache-2.0
"""Einsums quantized in the forward and the backward pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.layers import einsum_equations
from praxis.layers.quantization import quantization_hparams
from praxis.layers.quantization.operations import rounding

QuantizedTrainingParams = quantization_hparams.QuantizedTrainingParams

# Quantized values and their scale, or unquantized values and None.
_Operand = tuple[Array, Array | None]


def custom_einsum(
  x: Float[Array, '...'],
  w: Float[Array, '...'],
  *,
  eqn: str,
  prng_key: Array,
  params: QuantizedTrainingParams,
) -> Float[Array, '...']:
  """Returns an einsum of quantized operands, with quantized gradients.

  Under jit it equals upstream's bit for bit. Outside jit, stochastically
  rounded gradients may differ by one quantization step: upstream jits this
  function, and XLA keeps more precision between bfloat16 operations.

  Args:
    x: activations.
    w: the weight.
    eqn: equation of `x` and `w`; may have `...`.
    prng_key: key of the stochastic rounding of gradients.
    params: precisions and dtypes.

  Raises:
    ValueError: `params` are inconsistent.
  """
  _check(params)
  forward = einsum_equations.Equation.parse(eqn).expand(x.ndim, w.ndim)

  @jax.custom_vjp
  def product(x: Array, w: Array, key: Array) -> Array:
    return run(x, w, key)[0]

  def run(x: Array, w: Array, key: Array) -> tuple[Array, Any]:
    bits, cast = params.bits_fwd, params.cast_bits_fwd
    left = _quantize(x, forward.lhs, forward.out, bits, cast)
    right = _quantize(w, forward.rhs, forward.out, bits, cast)
    result = _multiply(forward, left, right, params)
    for letters, scale in ((forward.rhs, right[1]), (forward.lhs, left[1])):
      result = _apply_scale(
        result, forward.out, letters, scale, params.einsum_scale_output_dtype
      )
    return _cast(result, params), (left, right, key)

  def backward(saved: Any, grad: Array) -> tuple[Array, Array, None]:
    x_grad, w_grad = _gradients(forward, saved, grad, params)
    return x_grad.astype(x.dtype), w_grad.astype(w.dtype), None

  product.defvjp(run, backward)
  return product(x, w, prng_key)


def _gradients(
  forward: einsum_equations.Equation,
  saved: tuple[_Operand, _Operand, Array],
  grad: Array,
  params: QuantizedTrainingParams,
) -> list[Array]:
  """Returns the gradients of both operands."""
  left, right, key = saved
  rounding_key = key if params.random_rounding_bwd else None
  to_x = einsum_equations.Equation(forward.out, forward.rhs, forward.lhs)
  to_w = einsum_equations.Equation(forward.lhs, forward.out, forward.rhs)
  grads = []
  for step, other, letters in (
    (to_x, right, forward.rhs),
    (to_w, left, forward.lhs),
  ):
    # The other operand's scale varies along the contraction: apply it to grad.
    scaled = _apply_scale(
      grad, forward.out, letters, other[1], params.einsum_output_dtype
    )
    bits, cast = params.bits_bwd, params.cast_bits_bwd
    quantized_grad = _quantize(
      scaled, forward.out, step.out, bits, cast, rounding_key
    )
    unscaled = (other[0], None)
    if step is to_x:
      result = _multiply(step, quantized_grad, unscaled, params)
    else:
      result = _multiply(step, unscaled, quantized_grad, params)
    result = _apply_scale(
      result,
      step.out,
      forward.out,
      quantized_grad[1],
      params.einsum_scale_output_dtype,
    )
    grads.append(_cast(result, params))
  return grads


def _quantize(
  x: Array,
  letters: str,
  out: str,
  bits: int | None,
  cast_bits: int | None,
  key: Array | None = None,
) -> _Operand:
  """Returns `x` quantized over the dimensions that `out` lacks."""
  if cast_bits is not None:
    return x.astype({8: jnp.int8, 4: jnp.int4}[cast_bits]), None
  if bits is None:
    return x, None
  dims = tuple(i for i, c in enumerate(letters) if c not in out)
  values, scale, _ = rounding.reduce_precision(
    x, dims, bits=bits, random_rounding=key is not None, key=key
  )
  return values, jnp.squeeze(scale, axis=dims)


def _multiply(
  step: einsum_equations.Equation,
  left: _Operand,
  right: _Operand,
  params: QuantizedTrainingParams,
) -> Array:
  return jnp.einsum(
    str(step),
    left[0],
    right[0],
    preferred_element_type=params.einsum_output_dtype,
  )


def _apply_scale(
  x: Array, out: str, letters: str, scale: Array | None, dtype: Any
) -> Array:
  """Returns `x` times the scale of the operand with these letters."""
  if scale is None:
    return x
  uncontracted = ''.join(c for c in letters if c in out)
  return jnp.einsum(
    f'{out},{uncontracted}->{out}', x, scale, preferred_element_type=dtype
  )


def _cast(x: Array, params: QuantizedTrainingParams) -> Array:
  dtype = params.bwd_output_dtype
  return x if dtype is None else x.astype(dtype)


def _check(params: QuantizedTrainingParams) -> None:
  for direction, bits, cast in (
    ('fwd', params.bits_fwd, params.cast_bits_fwd),
    ('bwd', params.bits_bwd, params.cast_bits_bwd),
  ):
    if bits is not None and cast is not None:
      raise ValueError(
        f'bits_{direction} and cast_bits_{direction} exclude each other, got '
        f'{bits} and {cast}; set one to None'
      )
    if cast not in (None, 4, 8):
      raise ValueError(f'cast_bits_{direction} must be 4 or 8, got {cast}')
  if params.cast_bits_bwd is not None and params.bits_fwd is not None:
    raise ValueError(
      'cast_bits_bwd needs bits_fwd=None: gradients are cast without a scale, '
      f'got bits_fwd={params.bits_fwd}'
    )
