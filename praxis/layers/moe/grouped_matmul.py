# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows, each with the weight of its expert.

On TPUs they are megablox's kernels: XLA multiplies all rows by every expert in
the gradient of `jax.lax.ragged_dot` with respect to its weights.

References: MegaBlocks, https://arxiv.org/abs/2211.15841
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import lazy_loader, py_utils

# Takes 0.25 s to import.
megablox: Any = lazy_loader.LazyLoader(
  'megablox', globals(), 'jax.experimental.pallas.ops.tpu.megablox'
)

# The kernels have no others.
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
  fits = rows.dtype in _DTYPES and rows.shape[0] % _ROWS_OF_TILES[-1] == 0
  if fits and py_utils.target_platform() == 'tpu':
    return by_megablox(rows, weights, group_sizes)
  return jax.lax.ragged_dot(rows, weights, group_sizes)


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
