# SPDX-License-Identifier: Apache-2.0
"""Casts, masks, norms and reshapes of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from praxis.pytypes import JTensor

_TreeT = TypeVar('_TreeT')


def get_large_negative_number(dtype: jnp.dtype) -> JTensor:
  """Returns -0.7 times the maximum of `dtype`: a finite value for masking."""
  # Without jax_enable_x64 an array has 32 bits at most.
  dtype = jax.dtypes.canonicalize_dtype(dtype)
  info = jnp.finfo if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo
  return jnp.asarray(-0.7 * info(dtype).max, dtype=dtype)


def apply_mask_to_logits(
  logits: Float[Array, '...'], mask: Float[Array, '...']
) -> Float[Array, '...']:
  """Returns logits with the large negative number at masked positions.

  A position is masked if `mask` is below half the large negative number.
  """
  masked = get_large_negative_number(logits.dtype)
  return jnp.where(mask >= masked * 0.5, logits, masked)


def maybe_cast_float(x: _TreeT, dtype: jnp.dtype) -> _TreeT:
  """Returns a tree with its floating point leaves cast to `dtype`."""

  def cast(leaf: Any) -> Any:
    if not hasattr(leaf, 'dtype') or leaf.dtype == dtype:
      return leaf
    return (
      leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    )

  return jax.tree.map(cast, x)


def is_narrow_float(dtype: jnp.dtype) -> bool:
  """Whether sums in a floating point `dtype` lose more than in float32."""
  return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def l2_normalize(
  x: Float[Array, '*shape'],
  axis: int | Sequence[int] = -1,
  epsilon: float = 1e-12,
) -> Float[Array, '*shape']:
  """Returns x / sqrt(sum(x^2) + epsilon) with the sum over `axis`."""
  axes = axis if isinstance(axis, int) else tuple(axis)
  return x / jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=True) + epsilon)


def pad_or_trim_to(
  x: Shaped[Array, '...'] | None, shape: Sequence[int], pad_val: float = 0
) -> Shaped[Array, '...'] | None:
  """Trims or pads the end of each axis of `x` to `shape`.

  Raises:
    ValueError: `x` and `shape` differ in the number of dimensions.
  """
  if x is None:
    return None
  if x.ndim != len(shape):
    raise ValueError(
      f'pad_or_trim_to expects a shape of {x.ndim} dimensions like that of x, '
      f'{x.shape}, got {tuple(shape)}'
    )
  padding = [
    (0, max(0, new - old)) for old, new in zip(x.shape, shape, strict=True)
  ]
  padded = jnp.pad(x, padding, constant_values=pad_val)
  return jax.lax.slice(padded, [0] * x.ndim, shape)


def pad_to_multiple(
  x: Shaped[Array, '...'],
  dim: int,
  multiple: int,
  pad_val: jax.typing.ArrayLike = 0,
) -> Shaped[Array, '...']:
  """Returns `x` with the end of a dimension padded to a multiple."""
  padding = -x.shape[dim] % multiple
  if not padding:
    return x
  widths = [(0, padding if i == dim else 0) for i in range(x.ndim)]
  return jnp.pad(x, widths, constant_values=pad_val)


def reshape_with_outer_batch_size(
  array: Shaped[Array, 'B ...'], outer_bs: int
) -> Shaped[Array, 'outer inner ...']:
  """Reshapes [B, ...] to [outer_bs, B / outer_bs, ...].

  Raises:
    ValueError: `outer_bs` does not divide B.
  """
  if outer_bs < 1 or len(array) < outer_bs or len(array) % outer_bs:
    raise ValueError(
      f'outer_bs should be a factor of the batch size {len(array)}, got '
      f'{outer_bs}'
    )
  return array.reshape(outer_bs, -1, *array.shape[1:])


def combine_inner_and_outer_batches(
  array: Shaped[Array, 'outer inner ...'],
) -> Shaped[Array, 'B ...']:
  """Reshapes [outer, inner, ...] to [outer * inner, ...]."""
  return array.reshape(-1, *array.shape[2:])
