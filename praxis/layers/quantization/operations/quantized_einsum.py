# SPDX-License-Identifier: Apache-2.0
"""Einsums of quantized operands, with dequantization of the result."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Shaped

from praxis.layers import einsum_equations
from praxis.layers.quantization.utils import dtypes, int4_packing

_Equation = einsum_equations.Equation
# Of products of integers that int32 does not hold.
_FLOAT = jnp.float32
# Dequantization applies the scale, then the zero point.
_DEQUANTIZE = (jnp.multiply, jnp.subtract)


def einsum(
  eqn: str,
  x: Shaped[Array, '...'],
  w: Shaped[Array, '...'],
  scale: Array,
  zp: Array | None = None,
  scale_act: Array | None = None,
  zp_act: Array | None = None,
  scale_eqn: str | None = None,
  zp_eqn: str | None = None,
  swap_xw: bool = False,
  packed: int4_packing.PackedWeight | None = None,
) -> Array:
  """Returns the dequantized einsum with a quantized weight.

  Args:
    eqn: equation of `x` and `w`; may have `...`.
    x: activations, quantized or not.
    w: the quantized weight.
    scale: scale of the weight: a scalar, or the weight's uncontracted
      dimensions.
    zp: zero points of the weight, in the shape of the scale.
    scale_act: scale of quantized activations.
    zp_act: zero points of the activations.
    scale_eqn: equation of the result of `eqn` and `scale`, if that result is
      per block.
    zp_eqn: equation of `x` and `zp` in that case.
    swap_xw: whether `w` is the left operand of `eqn`.
    packed: the stored values of `w` in the same shape, if they are packed.
  """
  parsed = _Equation.parse(eqn)
  parsed = (parsed.swapped() if swap_xw else parsed).expand(x.ndim, w.ndim)
  if dtypes.is_fp8(w.dtype):
    w = w.astype(jnp.bfloat16)
  if zp_act is not None:
    return _dequantized_einsum(
      parsed, x, w, (scale, zp), (scale_act, zp_act), scale_eqn
    )
  product = _quantized_product(parsed, x, w, packed)
  if scale_act is not None:
    product = product * _align(
      scale_act, _uncontracted_left(parsed), parsed.out
    )
  if scale_eqn is not None:
    product = jnp.einsum(scale_eqn, product, scale)
  else:
    product = product * _align(scale, parsed.uncontracted, parsed.out)
  if zp is None:
    return product
  if scale_act is not None:
    x = x * _expand(scale_act, parsed.lhs, _uncontracted_left(parsed))
  if zp_eqn is not None:
    return product - jnp.einsum(zp_eqn, x, zp)
  return product - compute_offset(str(parsed), x, zp)


def compute_offset(
  eqn_normalized: str, x: Shaped[Array, '...'], zp: Array
) -> Array:
  """Returns the contribution of a weight's zero points to an einsum.

  Args:
    eqn_normalized: equation of `x` and the weight, without `...`.
    x: unquantized activations.
    zp: zero points in the uncontracted dimensions of the weight.

  Raises:
    ValueError: the equation has `...`, or an operand is an integer.
  """
  if '.' in eqn_normalized:
    raise ValueError(
      f"eqn_normalized must not have '...', got {eqn_normalized!r}; give each "
      'dimension a letter'
    )
  for name, array in (('x', x), ('zp', zp)):
    if array.dtype in dtypes.INT_TYPES:
      raise ValueError(f'{name} must not be quantized, got {array.dtype}')
  parsed = _Equation.parse(eqn_normalized)
  return jnp.einsum(f'{parsed.lhs},{parsed.uncontracted}->{parsed.out}', x, zp)


def get_scale_eqn(left: str, right: str) -> str:
  """Returns the letters of `right` that `left` also has."""
  return ''.join(c for c in right if c in left)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def dot_general_int(
  lhs: Int[Array, '...'], rhs: Int[Array, '...'], dimension_numbers: Any
) -> Int[Array, '...']:
  """Returns `lax.dot_general` of integers, accumulated in int32.

  Its derivative is that of the floating point product.
  """
  dtype = dtypes.get_smallest_matching_dtype(lhs, rhs)
  return lax.dot_general(
    lhs.astype(dtype),
    rhs.astype(dtype),
    dimension_numbers,
    preferred_element_type=jnp.int32,
  )


@dot_general_int.defjvp
def dot_general_int_jvp(
  dimension_numbers: Any, primals: Sequence[Array], tangents: Sequence[Any]
) -> tuple[Array, Any]:
  """Returns the product and its tangent."""
  product = dot_general_int(*primals, dimension_numbers)
  floats = lambda lhs, rhs: lax.dot_general(lhs, rhs, dimension_numbers)
  _, tangent = jax.jvp(floats, tuple(primals), tuple(tangents))
  return product, tangent


def _quantized_product(
  parsed: _Equation,
  x: Array,
  w: Array,
  packed: int4_packing.PackedWeight | None,
) -> Array:
  if x.dtype in dtypes.INT_TYPES and w.dtype in dtypes.INT_TYPES:
    if _may_overflow(parsed, x, w):
      return jnp.einsum(str(parsed), x.astype(_FLOAT), w.astype(_FLOAT))
    numbers, order = einsum_equations.einsum_eqn_to_dimension_numbers(
      str(parsed)
    )
    product = dot_general_int(x, w, numbers)
    return product if order is None else lax.transpose(product, order)
  x, w = _no_int4(x), _no_int4(w)
  fused = _weight_only_product(parsed, x, w, packed)
  return jnp.einsum(str(parsed), x, w) if fused is None else fused


def _may_overflow(parsed: _Equation, x: Array, w: Array) -> bool:
  """Whether a sum of products of any integers may exceed int32."""
  num_terms = math.prod(w.shape[i] for i in parsed.contracted)
  bits = dtypes.dtype_to_bits(x.dtype) + dtypes.dtype_to_bits(w.dtype)
  return num_terms * 2 ** (bits - 2) >= 2**31


def _weight_only_product(
  parsed: _Equation,
  x: Array,
  w: Array,
  packed: int4_packing.PackedWeight | None,
) -> Array | None:
  """Returns the einsum as products with matrices of integers.

  The weight has the contracted dimensions first (a matrix), last (a transposed
  matrix), or between others, as the projection to queries, keys and values: a
  matrix for each of the others before them.

  None if it is no such product, or if XLA is faster.
  """
  if w.dtype != jnp.int8:
    return None
  # Loads the kernels only for such weights.
  from praxis.kernels import integer_matmul

  num_contracted = len(parsed.contracted)
  num_leading = parsed.contracted[0] if num_contracted else 0
  num_before = num_leading + num_contracted
  contracted = parsed.rhs[num_leading:num_before]
  batch = parsed.lhs.removesuffix(contracted)
  if (
    parsed.lhs != batch + contracted
    or parsed.out != batch + parsed.rhs[:num_leading] + parsed.rhs[num_before:]
  ):
    return None
  transposed = 0 < num_leading and num_before == len(parsed.rhs)
  first_packed = num_leading - 1 if transposed else num_leading
  last_packed = num_leading if transposed else num_before
  batch_shape = x.shape[: len(batch)]
  rows = math.prod(batch_shape)
  stored, bits = w, 8
  if (
    packed is not None
    and packed.is_signed
    and first_packed <= packed.dim < last_packed
  ):
    stored, bits = packed.packed, 4
  matrix_dims = stored.shape if transposed else stored.shape[num_leading:]
  matrix = jax.ShapeDtypeStruct(matrix_dims, stored.dtype)
  if not integer_matmul.is_fast(x, matrix, rows, bits):
    return None
  if bits == 4 and packed is not None and not transposed:
    count = w.shape[packed.dim] // stored.shape[packed.dim]
    x = _in_packed_order(x, len(batch) + packed.dim - num_leading, count)
  x = x.reshape(rows, math.prod(w.shape[num_leading:num_before]))
  columns = w.shape[num_before:]
  if transposed:
    matrices = stored.reshape(1, -1, x.shape[1])
  else:
    depths = math.prod(stored.shape[num_leading:num_before])
    matrices = stored.reshape(-1, depths, math.prod(columns))
  products = [
    integer_matmul.integer_matmul(x, matrix, bits, transposed)
    for matrix in matrices
  ]
  out_shape = (*batch_shape, *w.shape[:num_leading], *columns)
  return jnp.stack(products, axis=1).reshape(out_shape)


def _in_packed_order(x: Array, dim: int, count: int) -> Array:
  """Moves the `count` values that one element packs to the last dimension."""
  shape = (*x.shape[:dim], x.shape[dim] // count, count, *x.shape[dim + 1 :])
  return jnp.moveaxis(x.reshape(shape), dim + 1, -1)


def _dequantized_einsum(
  parsed: _Equation,
  x: Array,
  w: Array,
  weight_params: tuple[Array, Array | None],
  act_params: tuple[Array | None, Array],
  scale_eqn: str | None,
) -> Array:
  """Returns the einsum of the dequantized operands.

  Zero points on both sides would expand the quantized einsum to four terms.
  """
  uncontracted = _uncontracted_left(parsed)
  w = _no_int4(w)
  for act_param, weight_param, apply in zip(
    act_params, weight_params, _DEQUANTIZE, strict=True
  ):
    if act_param is not None:
      x = apply(x, _expand(act_param, parsed.lhs, uncontracted))
    if weight_param is not None:
      w = apply(w, _expand(weight_param, parsed.rhs, parsed.uncontracted))
  product = jnp.einsum(str(parsed), x, w)
  if scale_eqn is None:
    return product
  blocks, out = scale_eqn.split(',')[0], scale_eqn.split('->')[1]
  return jnp.einsum(f'{blocks}->{out}', product)


def _uncontracted_left(parsed: _Equation) -> str:
  return get_scale_eqn(parsed.out, parsed.lhs)


def _expand(param: Array, letters: str, uncontracted: str) -> Array:
  """Returns a scale with size 1 in the dimensions that it lacks."""
  if param.ndim != len(uncontracted):
    return param
  missing = [i for i, c in enumerate(letters) if c not in uncontracted]
  return jnp.expand_dims(param, missing)


def _align(param: Array, uncontracted: str, out: str) -> Array:
  """Transposes a scale to the order of `out`, with size 1 elsewhere."""
  if param.ndim == 0 or param.ndim != len(uncontracted):
    return param
  order = sorted(
    range(len(uncontracted)), key=lambda i: out.index(uncontracted[i])
  )
  missing = [i for i, c in enumerate(out) if c not in uncontracted]
  return jnp.expand_dims(jnp.transpose(param, order), missing)


def _no_int4(x: Array) -> Array:
  return x.astype(jnp.int8) if x.dtype in dtypes.INT4_TYPES else x
