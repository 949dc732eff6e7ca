# SPDX-License-Identifier: Apache-2.0
"""Packing of 4-bit integers: eight in an int32, or two in an int8."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int, Integer

_BITS = 4


@dataclasses.dataclass(frozen=True)
class PackedWeight:
  """A weight as `pack_4bit` packs it."""

  packed: Int[Array, '*packed']
  # The dimension along which it is packed, and the type of its values.
  dim: int
  dtype: Any

  @property
  def is_signed(self) -> bool:
    """Whether the values are -8..7 instead of 0..15."""
    return bool(jnp.issubdtype(self.dtype, jnp.signedinteger))

  def unpack(self) -> Integer[Array, '*shape']:
    """Returns the int8 or uint8 values."""
    return unpack_4bit(self.packed, self.dim, self.dtype)


def packing_factor(packed_dtype: Any) -> int:
  """Returns the number of 4-bit values in an int32 or int8.

  Raises:
    ValueError: `packed_dtype` is another type.
  """
  factors = {jnp.dtype(jnp.int32): 8, jnp.dtype(jnp.int8): 2}
  factor = factors.get(jnp.dtype(packed_dtype))
  if factor is None:
    raise ValueError(
      f'4-bit values are packed into int32 or int8, got {packed_dtype}; '
      'set int4_packed_weights_container_dtype'
    )
  return factor


def get_packed_shape(
  shape: Sequence[int], pack_dim: int, packing_factor: int
) -> list[int]:
  """Returns `shape` with dimension `pack_dim` divided by `packing_factor`.

  Raises:
    ValueError: the dimension is not divisible.
  """
  if shape[pack_dim] % packing_factor:
    raise ValueError(
      f'dimension {pack_dim} of shape {list(shape)} must be a multiple of '
      f'{packing_factor} to be packed; set use_int4_packed_weights=False'
    )
  packed = list(shape)
  packed[pack_dim] //= packing_factor
  return packed


def pack_4bit(
  x: Integer[Array, '*shape'], pack_dim: int, packed_dtype: Any = jnp.int32
) -> Int[Array, '*packed']:
  """Packs 4-bit values along a dimension; the first is in the lowest bits.

  Args:
    x: int8 with values -8..7, or uint8 with values 0..15.
    pack_dim: the dimension.
    packed_dtype: int32 or int8.

  Raises:
    ValueError: the types or the shape do not support packing.
  """
  factor = packing_factor(packed_dtype)
  _check(x, pack_dim, x.dtype)
  if packed_dtype == jnp.int8 and x.dtype == jnp.uint8:
    raise ValueError(
      'uint8 values are packed into int32 only, got packed_dtype=int8'
    )
  shape = get_packed_shape(x.shape, pack_dim, factor)
  groups = [*shape[: pack_dim + 1], factor, *shape[pack_dim + 1 :]]
  nibbles = (x.astype(packed_dtype) & 0xF).reshape(groups)
  shifts = _shifts(factor, packed_dtype, len(shape) - 1 - pack_dim)
  # The bits are disjoint: the sum is the bitwise or.
  return jnp.sum(nibbles << shifts, axis=pack_dim + 1, dtype=packed_dtype)


def unpack_4bit(
  packed: Int[Array, '*packed'], pack_dim: int, original_dtype: Any
) -> Integer[Array, '*shape']:
  """Returns the int8 or uint8 values that `pack_4bit` packed."""
  factor = packing_factor(packed.dtype)
  _check(packed, pack_dim, original_dtype)
  shifts = _shifts(factor, packed.dtype, packed.ndim - 1 - pack_dim)
  nibbles = (jnp.expand_dims(packed, pack_dim + 1) >> shifts) & 0xF
  if jnp.issubdtype(original_dtype, jnp.signedinteger):
    nibbles = (nibbles ^ 8) - 8
  shape = list(packed.shape)
  shape[pack_dim] *= factor
  return nibbles.reshape(shape).astype(original_dtype)


def _shifts(factor: int, dtype: Any, trailing: int) -> Int[Array, '...']:
  shifts = _BITS * jnp.arange(factor, dtype=dtype)
  return shifts.reshape([factor] + [1] * trailing)


def _check(x: Array, pack_dim: int, dtype: Any) -> None:
  if jnp.dtype(dtype) not in (jnp.int8, jnp.uint8):
    raise ValueError(f'values to pack must be int8 or uint8, got {dtype}')
  if not 0 <= pack_dim < x.ndim:
    raise ValueError(
      f'pack_dim must be a dimension of shape {x.shape}, got {pack_dim}'
    )
