# SPDX-License-Identifier: Apache-2.0
"""Sums of consecutive rows as matrix products, for TPUs.

With XLA, sums of segments with different numbers of rows need an array that has
space for the largest segment in each. Here a block of segments is one product:
its one-hot matrix, [segments, rows], times its rows.

Shapes: R rows, N segments, M model dimension, B segments of a block.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import lazy_loader

# Takes 0.25 s to import.
megablox: Any = lazy_loader.LazyLoader(
  'megablox', globals(), 'jax.experimental.pallas.ops.tpu.megablox.gmm'
)

# B, and the numbers of rows and outputs that a tile may have.
_BLOCK = 128
_ROWS_OF_TILES = (512, 256, 128)
_MAX_OUTPUTS_OF_TILE = 2048


def is_supported(rows: Float[Array, 'R ...']) -> bool:
  """Returns whether the products are exact and the rows fill their tiles."""
  fills_tiles = rows.ndim == 2 and rows.shape[0] % _ROWS_OF_TILES[-1] == 0
  return fills_tiles and rows.dtype == jnp.bfloat16


def segment_sum(
  rows: Float[Array, 'R M'],
  segments: Int[Array, ' R'],
  ends: Int[Array, ' N'],
  *,
  interpret: bool = False,
) -> Float[Array, 'N M']:
  """Returns the sum of the rows of each segment, added in float32.

  A row that is not finite makes the sums of its whole block NaN.

  Args:
    rows: sorted by segment, see `is_supported`. Rows without a segment come
      last and may be undefined.
    segments: of the rows.
    ends: number of rows of each segment and those before it.
    interpret: whether Pallas interprets the kernel, for tests on CPUs.
  """
  num_rows, num_outputs = rows.shape
  num_segments = ends.shape[0]
  num_blocks = -(-num_segments // _BLOCK)
  padded = jnp.pad(ends, (0, num_blocks * _BLOCK - num_segments), mode='edge')
  block_sizes = jnp.diff(padded[_BLOCK - 1 :: _BLOCK], prepend=0)
  in_block = jnp.arange(_BLOCK)[:, jnp.newaxis]
  sums = megablox.tgmm(
    (segments % _BLOCK == in_block).astype(rows.dtype),
    rows,
    block_sizes,
    rows.dtype,
    (
      _rows_of_tile(num_rows, num_blocks),
      _BLOCK,
      min(num_outputs, _MAX_OUTPUTS_OF_TILE),
    ),
    interpret=interpret,
  )
  return sums.reshape(-1, num_outputs)[:num_segments]


def _rows_of_tile(num_rows: int, num_blocks: int) -> int:
  """Returns the largest tile of at most half of the rows of an average block.

  It is the smallest of all if even that one has more.
  """
  fitting = [size for size in _ROWS_OF_TILES if num_rows % size == 0]
  return next(
    (size for size in fitting if 2 * size * num_blocks <= num_rows), fitting[-1]
  )
