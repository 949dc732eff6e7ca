# SPDX-License-Identifier: Apache-2.0
"""Sequences cut into blocks, each with what its positions may see.

Shapes: B batch, T time, W block size, U = ⌈T / W⌉ blocks, L and R the left and
right context (L counts the position itself), C = W + L - 1 + R what a block
sees.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from praxis.layers.attentions import masks


def convert_to_block(
  x: Shaped[Array, 'B T ...'],
  block_size: int,
  padding_val: float | Array = 0.0,
) -> Shaped[Array, 'B U W ...']:
  """Returns `x` in blocks, the last one filled up with `padding_val`.

  Raises:
    ValueError: the block size is not positive.
  """
  if block_size < 1:
    raise ValueError(
      f'block_size must be at least 1, got {block_size}; it is the number of '
      'positions that are computed together'
    )
  batch, length = x.shape[:2]
  num_blocks = -(-length // block_size)
  widths = [(0, 0)] * x.ndim
  widths[1] = (0, num_blocks * block_size - length)
  padded = jnp.pad(x, widths, constant_values=padding_val)
  return padded.reshape(batch, num_blocks, block_size, *x.shape[2:])


def extract_block_context(
  x: Shaped[Array, 'B T ...'],
  block_size: int,
  left_context: int,
  right_context: int,
  padding_val: float | Array = 0.0,
) -> Shaped[Array, 'B U C ...']:
  """Returns for each block its positions, and those before and after it.

  Args:
    x: a sequence.
    block_size: number of positions in a block.
    left_context: from how many positions before the block on, plus one.
    right_context: up to how many positions after the block.
    padding_val: what stands outside of the sequence.

  Raises:
    ValueError: a context is longer than a block.
  """
  check_context(block_size, left_context, right_context)
  blocks = convert_to_block(x, block_size, padding_val)
  outside = jnp.full_like(blocks[:, :1], padding_val)
  before = jnp.concatenate([outside, blocks[:, :-1]], axis=1)
  after = jnp.concatenate([blocks[:, 1:], outside], axis=1)
  seen_before = before[:, :, block_size - left_context + 1 :]
  seen_after = after[:, :, :right_context]
  return jnp.concatenate([seen_before, blocks, seen_after], axis=2)


def extract_block_mask(
  mask: Float[Array, 'B N #T S'],
  block_size: int,
  left_context: int,
  right_context: int,
) -> Float[Array, 'B U N #W C']:
  """Returns the part of an additive mask that each block looks at."""
  hidden = masks.large_negative(mask.dtype)
  num_keys = mask.shape[-1]
  num_blocks = -(-num_keys // block_size)
  context = block_size + left_context - 1 + right_context
  first = np.arange(num_blocks)[:, None] * block_size - left_context + 1
  columns = first + np.arange(context)
  inside = (columns >= 0) & (columns < num_keys)
  columns = np.clip(columns, 0, num_keys - 1)
  rows = jnp.moveaxis(mask, 1, 2)
  if mask.shape[2] == 1:
    rows = rows[:, jnp.newaxis]
  else:
    rows = convert_to_block(rows, block_size, hidden)
  # Now [B, U or 1, W or 1, N, S].
  take = jax.vmap(lambda x, i: x[..., i], in_axes=(1, 0), out_axes=1)
  if rows.shape[1] == 1:
    rows = jnp.broadcast_to(rows, (rows.shape[0], num_blocks, *rows.shape[2:]))
  taken = jnp.moveaxis(take(rows, columns), 3, 2)
  return jnp.where(inside[:, np.newaxis, np.newaxis], taken, hidden)


def check_context(
  block_size: int, left_context: int, right_context: int
) -> None:
  """Raises ValueError if a block and its neighbours do not hold the context."""
  if not 1 <= left_context <= block_size + 1:
    raise ValueError(
      'left_context must be at least 1 (the position itself) and at most '
      f'block_size + 1 = {block_size + 1}, got {left_context}; raise block_size'
    )
  if not 0 <= right_context <= block_size:
    raise ValueError(
      f'right_context must be from 0 to block_size = {block_size}, got '
      f'{right_context}; raise block_size'
    )
