# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows, each with the weight of its expert.

On TPUs they are megablox's kernels: XLA multiplies all rows by every expert in
the gradient of `jax.lax.ragged_dot` with respect to its weights. On NVIDIA GPUs
they are kernels by Triton: XLA multiplies all rows by every expert everywhere.

References: MegaBlocks, https://arxiv.org/abs/2211.15841
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from jaxtyping import Array, Float, Int

from praxis import lazy_loader, py_utils
from praxis.kernels import grouped_matmul_triton, nvidia

# Takes 0.25 s to import.
megablox: Any = lazy_loader.LazyLoader(
  'megablox', globals(), 'jax.experimental.pallas.ops.tpu.megablox'
)

# Megablox has no others.
_DTYPES = (jnp.bfloat16, jnp.float32)
# Numbers of rows that a tile may have, and its other dimensions.
_ROWS_OF_TILES = (512, 256, 128)
_MAX_TILE = 1024


def grouped_matmul(
  rows: Float[Array, 'R K'],
  weights: Float[Array, 'E K N'],
  group_sizes: Int[Array, ' E'],
) -> Float[Array, 'R N']:
  """Returns rows[group] @ weights[i] for each group i of consecutive rows.

  Rows after the last group are undefined, and so are their gradients.
  """
  platform = py_utils.target_platform()
  if platform == 'cpu':
    return jax.lax.ragged_dot(rows, weights, group_sizes)
  if reason := _reason_against_kernel(platform, rows, weights):
    _warn_once(platform, reason)
    return jax.lax.ragged_dot(rows, weights, group_sizes)
  if platform == 'tpu':
    return by_megablox(rows, weights, group_sizes)
  return grouped_matmul_triton.grouped_matmul(rows, weights, group_sizes)


def _reason_against_kernel(
  platform: str, rows: Float[Array, 'R K'], weights: Float[Array, 'E K N']
) -> str | None:
  """Returns a property that the platform's kernel does not support, or None."""
  is_tpu = platform == 'tpu'
  dtypes = _DTYPES if is_tpu else grouped_matmul_triton.DTYPES
  if rows.dtype not in dtypes:
    return f'{rows.dtype}, not {" or ".join(jnp.dtype(t).name for t in dtypes)}'
  if is_tpu:
    multiple = _ROWS_OF_TILES[-1]
    if rows.shape[0] % multiple:
      return f'{rows.shape[0]} rows, not a multiple of {multiple}'
    return None
  multiple = grouped_matmul_triton.DIM_MULTIPLE
  if any(dim % multiple for dim in weights.shape[1:]):
    return f'weights of {weights.shape[1:]}, not multiples of {multiple}'
  return nvidia.reason_against_triton()


@functools.cache
def _warn_once(platform: str, reason: str) -> None:
  logging.warning(
    'Products of experts multiply all rows by every expert on this %s: %s.',
    platform.upper(),
    reason,
  )


def by_megablox(
  rows: Float[Array, 'R K'],
  weights: Float[Array, 'E K N'],
  group_sizes: Int[Array, ' E'],
  *,
  interpret: bool = False,
) -> Float[Array, 'R N']:
  """Computes `grouped_matmul` for a multiple of 128 rows.

  Args:
    rows: rows of all groups.
    weights: of the same dtype.
    group_sizes: number of rows of each group.
    interpret: whether Pallas interprets the kernel, for tests on CPUs.
  """
  # Its custom gradient takes positional arguments.
  group_offset = existing_out = None
  transpose_rhs = False
  return megablox.gmm(
    *(rows, weights, group_sizes, rows.dtype, _tiling),
    *(group_offset, existing_out, transpose_rhs, interpret),
  )


def _tiling(num_rows: int, inner: int, outer: int) -> tuple[int, int, int]:
  """Returns the tile of the product [num_rows, inner] x [inner, outer]."""
  return (
    next(size for size in _ROWS_OF_TILES if num_rows % size == 0),
    min(inner, _MAX_TILE),
    min(outer, _MAX_TILE),
  )
