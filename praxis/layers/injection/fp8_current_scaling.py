# SPDX-License-Identifier: Apache-2.0
"""fp8 einsums with current scaling: a tensor is scaled by its own maximum.

Unlike delayed scaling this has no state, and no value saturates. It reads each
tensor twice, for the maximum and for the cast. Scales are powers of two:
multiplying by them is exact in every dtype.

References:
  FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.linen import fp8_ops
from jax import lax
from jaxtyping import Array, Float, Shaped

from praxis.layers import einsum_equations

E4M3 = jnp.float8_e4m3fn
E5M2 = jnp.float8_e5m2


class Scaled(NamedTuple):
  """A tensor `values * scale`."""

  values: Float[Array, '...']
  scale: Float[Array, '']


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum(
  equation: einsum_equations.Equation,
  x: Shaped[Array, '...'],
  kernel: Shaped[Array, '...'],
) -> Shaped[Array, '...']:
  """Returns the einsum of E4M3 operands; its gradient is cast to E5M2.

  Args:
    equation: equation without `...`.
    x: the left operand.
    kernel: the right operand, of the same dtype.
  """
  return _einsum_fwd(equation, x, kernel)[0]


def _einsum_fwd(
  equation: einsum_equations.Equation, x: Array, kernel: Array
) -> tuple[Array, tuple[Scaled, Scaled]]:
  operands = quantize(x, E4M3), quantize(kernel, E4M3)
  # As for delayed scaling in Flax: fast accumulation of the forward pass only.
  product = _product(
    str(equation), *operands, x.dtype, precision=lax.Precision.DEFAULT
  )
  return product, operands


def _einsum_bwd(
  equation: einsum_equations.Equation,
  operands: tuple[Scaled, Scaled],
  grad: Array,
) -> tuple[Array, Array]:
  x, kernel = operands
  lhs, rhs, out = equation.lhs, equation.rhs, equation.out
  scaled_grad = quantize(grad, E5M2)
  product = functools.partial(
    _product, dtype=grad.dtype, precision=lax.Precision.HIGHEST
  )
  return (
    product(f'{out},{rhs}->{lhs}', scaled_grad, kernel),
    product(f'{lhs},{out}->{rhs}', x, scaled_grad),
  )


einsum.defvjp(_einsum_fwd, _einsum_bwd)


def quantize(x: Float[Array, '...'], dtype: Any) -> Scaled:
  """Returns `x` scaled into the range of an fp8 dtype.

  A tensor that is not finite has the scale NaN, so that its products are not
  finite either.
  """
  amax = jnp.max(jnp.abs(x)).astype(jnp.float32)
  # Below the smallest normal number XLA:CPU takes a ratio for 0.
  smallest = float(jnp.finfo(jnp.float32).tiny)
  ratio = jnp.maximum(amax / float(jnp.finfo(dtype).max), smallest)
  mantissa, _ = jnp.frexp(ratio)
  # The smallest power of two above the ratio; its division is exact.
  scale = ratio / mantissa
  return Scaled(fp8_ops.quantize(x, dtype, scale, x.dtype), scale)


def _product(
  equation: str, lhs: Scaled, rhs: Scaled, dtype: Any, precision: lax.Precision
) -> Array:
  numbers, order = einsum_equations.einsum_eqn_to_dimension_numbers(equation)
  product = lax.dot_general(
    lhs.values,
    rhs.values,
    numbers,
    precision=precision,
    preferred_element_type=dtype,
  )
  product = fp8_ops.dequantize(product, dtype, lhs.scale * rhs.scale)
  return product if order is None else lax.transpose(product, order)
