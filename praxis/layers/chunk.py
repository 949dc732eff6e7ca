# SPDX-License-Identifier: Apache-2.0
"""Splits an axis into chunks, and joins them again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)


def chunk(
  x: Shaped[Array, '...'], *, chunk_size: int, axis: int = 1
) -> Shaped[Array, 'chunks ...']:
  """Splits `axis` into chunks: [..., L, ...] to [L/C, ..., C, ...].

  The last chunk is padded with zeros.

  Raises:
    ValueError: `chunk_size` is not positive.
  """
  if chunk_size < 1:
    raise ValueError(f'chunk_size must be positive, got {chunk_size}')
  axis %= x.ndim
  padding = [(0, 0)] * x.ndim
  padding[axis] = (0, -x.shape[axis] % chunk_size)
  padded = jnp.pad(x, padding)
  shape = (*x.shape[:axis], -1, chunk_size, *x.shape[axis + 1 :])
  return jnp.moveaxis(padded.reshape(shape), axis, 0)


def unchunk(
  chunk_x: Shaped[Array, 'chunks ...'],
  axis: int = 1,
  seqlen: int | None = None,
) -> Shaped[Array, '...']:
  """Inverts `chunk`; truncates the axis to `seqlen` if given."""
  axis %= chunk_x.ndim - 1
  x = jnp.moveaxis(chunk_x, 0, axis)
  x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
  return x if seqlen is None else jax.lax.slice_in_dim(x, 0, seqlen, axis=axis)
