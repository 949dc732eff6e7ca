# SPDX-License-Identifier: Apache-2.0
"""Integer types by their number of bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

INT4_TYPES = [jnp.int4, jnp.uint4]
INT_TYPES = [
  *INT4_TYPES,
  jnp.int8,
  jnp.uint8,
  jnp.int16,
  jnp.uint16,
  jnp.int32,
  jnp.uint32,
]


def dtype_to_bits(dtype: Any) -> int:
  """Returns the number of bits of a value of `dtype`; 4 for int4."""
  dtype = jnp.dtype(dtype)
  return 4 if dtype in INT4_TYPES else dtype.itemsize * 8


def bits_to_dtype(bits: int, signed: bool = True) -> Any:
  """Returns the smallest integer type with at least `bits` bits.

  Raises:
    ValueError: `bits` is not from 1 to 32.
  """
  if not 1 <= bits <= 32:
    raise ValueError(f'bits must be from 1 to 32, got {bits}')
  sizes = {
    4: (jnp.uint4, jnp.int4),
    8: (jnp.uint8, jnp.int8),
    16: (jnp.uint16, jnp.int16),
    32: (jnp.uint32, jnp.int32),
  }
  return next(types[signed] for size, types in sizes.items() if bits <= size)


def get_smallest_matching_dtype(lhs: Array, rhs: Array) -> Any:
  """Returns the smallest integer type for the values of both arrays.

  uint32 with a signed type yields int32, as in XLA.

  Raises:
    ValueError: an array is not of an integer type.
  """
  for name, x in (('lhs', lhs), ('rhs', rhs)):
    if x.dtype not in INT_TYPES:
      raise ValueError(
        f'{name} must have an integer type, got {x.dtype}; quantize it first'
      )
  signed: list[int] = []
  unsigned: list[int] = []
  for x in (lhs, rhs):
    is_signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    (signed if is_signed else unsigned).append(dtype_to_bits(x.dtype))
  if not signed or not unsigned:
    return bits_to_dtype(max(signed + unsigned), signed=bool(signed))
  if unsigned[0] < signed[0]:
    return bits_to_dtype(signed[0])
  return bits_to_dtype(min(32, 2 * unsigned[0]))


def is_fp8(dtype: Any) -> bool:
  """Whether `dtype` is an 8-bit floating point type."""
  dtype = jnp.dtype(dtype)
  return dtype.itemsize == 1 and jnp.issubdtype(dtype, jnp.floating)
