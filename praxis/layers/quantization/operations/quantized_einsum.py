# SPDX-License-Identifier: Apache-2.0
"""Products of quantised operands, and what restores their results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Shaped

from praxis.layers.quantization.utils import dtypes, einsum_equations

_Equation = einsum_equations.Equation
# What is done with a scale, and then with a zero point.
_RESTORE = (jnp.multiply, jnp.subtract)


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
) -> Array:
  """Returns the product of a weight's quantised numbers, restored.

  Args:
    eqn: of `x` and `w`; may have `...`.
    x: activations, quantised or not.
    w: the weight, as quantised.
    scale: of the weight, one number for each entry that is not contracted; or
      one for all.
    zp: zero points of the weight, likewise.
    scale_act: of the activations, if they are quantised.
    zp_act: their zero points.
    scale_eqn: of the product and `scale`, when the product is not yet the
      output (as with blocks).
    zp_eqn: of `x` and `zp` then.
    swap_xw: whether `eqn` is of `w` and `x`, in this order.
  """
  parsed = _Equation.parse(eqn)
  parsed = (parsed.swapped() if swap_xw else parsed).expand(x.ndim, w.ndim)
  if dtypes.is_fp8(w.dtype):
    w = w.astype(jnp.bfloat16)
  if zp_act is not None:
    return _dequantized(
      parsed, x, w, (scale, zp), (scale_act, zp_act), scale_eqn
    )
  product = _product(parsed, x, w)
  if scale_act is not None:
    product = product * _align(scale_act, _kept_left(parsed), parsed.out)
  if scale_eqn is not None:
    product = jnp.einsum(scale_eqn, product, scale)
  else:
    product = product * _align(scale, parsed.kept, parsed.out)
  if zp is None:
    return product
  if scale_act is not None:
    x = x * _expand(scale_act, parsed.lhs, _kept_left(parsed))
  if zp_eqn is not None:
    return product - jnp.einsum(zp_eqn, x, zp)
  return product - compute_offset(str(parsed), x, zp)


def compute_offset(
  eqn_normalized: str, x: Shaped[Array, '...'], zp: Array
) -> Array:
  """Returns the product of activations with a weight's zero points.

  Args:
    eqn_normalized: of `x` and the weight, without `...`.
    x: activations, not quantised.
    zp: one number for each entry of the weight that is not contracted.
  """
  if '.' in eqn_normalized:
    raise ValueError(
      f"eqn_normalized must not have '...', got {eqn_normalized!r}; give each "
      'dimension a letter'
    )
  for name, array in (('x', x), ('zp', zp)):
    if array.dtype in dtypes.INT_TYPES:
      raise ValueError(f'{name} must not be quantised, got {array.dtype}')
  parsed = _Equation.parse(eqn_normalized)
  return jnp.einsum(f'{parsed.lhs},{parsed.kept}->{parsed.out}', x, zp)


def get_scale_eqn(left: str, right: str) -> str:
  """Returns the letters of `right` that are in `left`, too."""
  return ''.join(c for c in right if c in left)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def dot_general_int(
  lhs: Int[Array, '...'], rhs: Int[Array, '...'], dimension_numbers: Any
) -> Int[Array, '...']:
  """Returns `lax.dot_general` of integers, summed in int32.

  Its derivative is that of a product of floats.
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
  """Returns the product and its derivative."""
  product = dot_general_int(*primals, dimension_numbers)
  floats = lambda lhs, rhs: lax.dot_general(lhs, rhs, dimension_numbers)
  _, tangent = jax.jvp(floats, tuple(primals), tuple(tangents))
  return product, tangent


def _product(parsed: _Equation, x: Array, w: Array) -> Array:
  if x.dtype in dtypes.INT_TYPES and w.dtype in dtypes.INT_TYPES:
    numbers, order = einsum_equations.einsum_eqn_to_dimension_numbers(
      str(parsed)
    )
    product = dot_general_int(x, w, numbers)
    return product if order is None else lax.transpose(product, order)
  return jnp.einsum(str(parsed), _no_int4(x), _no_int4(w))


def _dequantized(
  parsed: _Equation,
  x: Array,
  w: Array,
  of_weight: tuple[Array, Array | None],
  of_activation: tuple[Array, Array],
  scale_eqn: str | None,
) -> Array:
  """Returns the product of restored operands.

  Both operands with zero points would make a sum of four products.
  """
  kept = _kept_left(parsed)
  for part, restore in zip(of_activation, _RESTORE, strict=True):
    x = restore(x, _expand(part, parsed.lhs, kept))
  w = _no_int4(w)
  for part, restore in zip(of_weight, _RESTORE, strict=True):
    if part is not None:
      w = restore(w, _expand(part, parsed.rhs, parsed.kept))
  product = jnp.einsum(str(parsed), x, w)
  if scale_eqn is None:
    return product
  blocks, out = scale_eqn.split(',')[0], scale_eqn.split('->')[1]
  return jnp.einsum(f'{blocks}->{out}', product)


def _kept_left(parsed: _Equation) -> str:
  return get_scale_eqn(parsed.out, parsed.lhs)


def _expand(part: Array, letters: str, kept: str) -> Array:
  """Returns a scale with size 1 for the letters that it does not have."""
  if part.ndim != len(kept):
    return part
  missing = [i for i, c in enumerate(letters) if c not in kept]
  return jnp.expand_dims(part, missing)


def _align(part: Array, kept: str, out: str) -> Array:
  """Returns a scale in the order of an output, with size 1 for the rest."""
  if part.ndim == 0 or part.ndim != len(kept):
    return part
  order = sorted(range(len(kept)), key=lambda i: out.index(kept[i]))
  missing = [i for i, c in enumerate(out) if c not in kept]
  return jnp.expand_dims(jnp.transpose(part, order), missing)


def _no_int4(x: Array) -> Array:
  return x.astype(jnp.int8) if x.dtype in dtypes.INT4_TYPES else x
